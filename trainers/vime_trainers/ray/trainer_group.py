"""`TrainerGroup`: the trainer's ranks as Ray actors, driven as one trainer.

Every method runs on all ranks, because every method of a trainer is a collective. If one rank fails, the
others would wait for it for ever: they are killed, and the caller gets one error that says which rank failed
and why.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from vime_agents.errors import TrainerError, VimeAgentsError
from vime_agents.registry import load_object
from vime_agents.trainer import Batch
from vime_trainers.megatron.config import MegatronConfig

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Weights on disk: one safetensors file under Hugging Face names."""

    path: str
    version: int
    """The weight version that the file says it holds."""
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    """Name -> (shape, dtype), in the file's order."""
    num_bytes: int
    seconds: float


class _Rank:
    """One trainer rank; lives in its own process, the only kind that imports torch."""

    def address(self) -> tuple[str, int]:
        """This node's address and a port that is free now: where the ranks meet."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    def start(self, config: MegatronConfig, env: dict[str, str], trainer: str) -> int:
        os.environ.update(env)
        self.rank = int(env["RANK"])
        self.trainer = load_object(TRAINERS[trainer], "--trainer")(config)
        return self.trainer.version

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = getattr(self.trainer, method)(*args, **kwargs)
        return answer if self.rank == 0 else None

    def version(self) -> int:
        return self.trainer.version

    def process_id(self) -> int:
        return os.getpid()

    def export(self, path: str, dtype_name: Dtype, version: int) -> Export | None:
        from vime_trainers.sync.weight_file import write_weight_file

        started = time.perf_counter()
        if self.rank != 0:
            return self._exhaust(dtype_name)
        layout = self._layout(dtype_name)
        written = write_weight_file(Path(path), layout, self._weights(dtype_name), version=version)
        return Export(
            path=path,
            version=version,
            tensors={name: (shape, str(dtype).split(".")[1]) for name, (shape, dtype) in layout.items()},
            num_bytes=written.num_bytes,
            seconds=time.perf_counter() - started,
        )

    def export_folder(self, folder: str, dtype_name: Dtype, version: int, shard_size: int) -> int | None:
        from vime_trainers.sync.weight_shards import write_weight_shards

        if self.rank != 0:
            return self._exhaust(dtype_name)
        tensors = self._weights(dtype_name)
        return write_weight_shards(
            Path(folder), self._layout(dtype_name), tensors, version=version, shard_size=shard_size
        )

    def _weights(self, dtype_name: Dtype) -> Any:
        import torch

        return self.trainer.weights(getattr(torch, dtype_name))

    def _layout(self, dtype_name: Dtype) -> Any:
        import torch

        from vime_trainers.megatron.families.shape import FLOAT32_TENSORS

        dtype = getattr(torch, dtype_name)
        return {
            name: (shape, torch.float32 if name.endswith(FLOAT32_TENSORS) else dtype)
            for name, shape in self.trainer.weight_shapes().items()
        }

    def _exhaust(self, dtype_name: Dtype) -> None:
        for _ in self._weights(dtype_name):
            pass

    def join_broadcast(self, address: str, port: int, world_size: int) -> None:
        from vime_trainers.sync.gloo_group import join_group

        self.receivers = join_group(address, port, rank=0, world_size=world_size)

    def broadcast(self, dtype_name: Dtype) -> None:
        import torch

        from vime_trainers.sync.gloo_group import send_tensor

        for _, tensor in self.trainer.weights(getattr(torch, dtype_name)):
            if self.rank == 0:
                send_tensor(self.receivers, tensor)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return self.trainer.weight_shapes()


TRAINERS = {
    "megatron": "vime_trainers.megatron.trainer:MegatronTrainer",
    "torch": "vime_trainers.torch_trainer:TorchTrainer",
}
"""`--trainer` -> the class that every rank makes."""


class TrainerGroup:
    """One trainer on `num_ranks` Ray actors. Ray must be initialised."""

    version: int
    """Updates done so far."""

    def __init__(
        self,
        config: MegatronConfig,
        *,
        num_ranks: int,
        trainer: str = "megatron",
        num_cpus_per_rank: float = 1,
        num_gpus_per_rank: float = 0,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 600.0,
    ) -> None:
        """Place the ranks, start them and load the weights.

        Args:
            config: The same for all ranks.
            num_ranks: A multiple of tensor x pipeline x context parallel size.
            trainer: A key of `TRAINERS`.
            num_cpus_per_rank: What Ray reserves.
            num_gpus_per_rank: What Ray reserves; 0 trains on the CPU.
            env: Extra environment variables of the ranks' processes, e.g. OMP_NUM_THREADS.
            start_timeout_s: How long the cluster may take to have the room.

        Raises:
            TrainerError: there is no room, or a rank did not start.
        """
        self._bundles: PlacementGroup | None = None
        self._ranks: list[Any] = []
        self._asking = threading.Lock()
        self._failure: VimeAgentsError | None = None
        bundle = {"CPU": num_cpus_per_rank} | ({"GPU": num_gpus_per_rank} if num_gpus_per_rank else {})
        self._bundles = placement_group([bundle] * num_ranks, strategy="PACK")
        if not self._bundles.wait(start_timeout_s):
            self.shutdown()
            raise TrainerError(
                f"no room for {num_ranks} trainer ranks of {bundle} within {start_timeout_s:g} s; the "
                f"cluster has {ray.cluster_resources()}. Ask for less, or add nodes"
            )
        # BLAS threads are set before torch is imported: one per reserved core, unless the caller says.
        process_env = {"OMP_NUM_THREADS": str(max(1, int(num_cpus_per_rank)))} | dict(env or {})
        actor = ray.remote(_Rank)
        for index in range(num_ranks):
            place = PlacementGroupSchedulingStrategy(
                placement_group=self._bundles, placement_group_bundle_index=index
            )
            options = actor.options(
                num_cpus=num_cpus_per_rank,
                num_gpus=num_gpus_per_rank,
                scheduling_strategy=place,
                runtime_env={"env_vars": process_env},
            )
            self._ranks.append(options.remote())
        host, port = self._answers([self._ranks[0].address.remote()])[0]
        shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
        envs = [shared | {"RANK": str(i), "LOCAL_RANK": "0"} for i in range(num_ranks)]
        starts = [r.start.remote(config, e, trainer) for r, e in zip(self._ranks, envs, strict=True)]
        self.version = self._answers(starts)[0]

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step; the batch is sent once, through the object store."""
        metrics = self._call("update", ray.put(batch))
        self.version = self._answers([self._ranks[0].version.remote()])[0]
        return metrics

    def logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Log-prob of each token of each row given those before it; entry 0 of a row is NaN.

        With `masks`, [num_tokens] each, only of the tokens that they select; NaN elsewhere.
        """
        wanted = None if masks is None else list(masks)
        return self._call("logprobs", ray.put(list(rows)), temperature=temperature, masks=wanted)

    def values(
        self,
        rows: Sequence[NDArray[np.int32]],
        masks: Sequence[NDArray[np.bool_]],
        *,
        ends: bool = False,
    ) -> list[NDArray[np.float32]]:
        """As `vime_agents.trainer.CriticTrainer.values`."""
        return self._call("values", ray.put(list(rows)), list(masks), ends=ends)

    def update_critic(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of the critic."""
        return self._call("update_critic", ray.put(batch))

    def export(self, path: str | Path, dtype: Dtype = "float32", *, version: int | None = None) -> Export:
        """Write the weights into one safetensors file on rank 0's node, whole or not at all.

        Args:
            path: The file; its folder exists.
            dtype: Of every tensor.
            version: Written into the file, so that a stale one is recognised; None takes `self.version`.
        """
        held = self.version if version is None else version
        return self._ask("export", str(path), dtype, held)

    def export_folder(
        self, folder: Path, dtype: Dtype = "float32", *, version: int | None = None, shard_size: int
    ) -> int:
        """Write the weights as files of at most `shard_size` bytes into a folder on rank 0's node.

        Returns:
            Bytes of all tensors.
        """
        held = self.version if version is None else version
        return self._ask("export_folder", str(folder), dtype, held, shard_size)

    def address(self) -> tuple[str, int]:
        """Rank 0's address, and a port that is free there now."""
        return self._answers([self._ranks[0].address.remote()])[0]

    def join_broadcast(self, address: str, port: int, world_size: int) -> None:
        """Make rank 0 the sender of a group of engines; returns when all of them are there."""
        self._answers([self._ranks[0].join_broadcast.remote(address, port, world_size)])

    def broadcast(self, dtype: Dtype = "float32") -> None:
        """Send all weights to that group, in the order of `weight_shapes`."""
        self._ask("broadcast", dtype)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape, in the order in which weights are exported and sent."""
        return self._answers([self._ranks[0].weight_shapes.remote()])[0]

    def save_adapter(self, folder: Path) -> None:
        """Write what `lora` trained, as PEFT does, on rank 0's node."""
        self._call("save_adapter", folder)

    def save(self, folder: Path) -> None:
        """Write a checkpoint into the empty folder, which all ranks must see."""
        self._call("save", folder)

    def begin_save(self, folder: Path) -> None:
        """Begin to write one, and go on: it is complete once `finish_saves` says so. Megatron's alone."""
        self._call("begin_save", folder)

    def finish_saves(self, *, wait: bool) -> bool:
        """Whether the save that was begun, if any, is complete; with `wait`, once it is."""
        return self._call("finish_saves", wait=wait)

    def load(self, folder: Path) -> None:
        """Read a checkpoint."""
        self._call("load", folder)
        self.version = self._answers([self._ranks[0].version.remote()])[0]

    def process_ids(self) -> list[int]:
        """Each rank's process on its node: for a profiler, a debugger, a test that kills one."""
        return self._answers([r.process_id.remote() for r in self._ranks])

    def shutdown(self) -> None:
        """Kill the ranks and give their place back. Idempotent."""
        for rank in self._ranks:
            ray.kill(rank, no_restart=True)
        self._ranks = []
        if self._bundles is not None:
            remove_placement_group(self._bundles)
            self._bundles = None

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", method, *args, **kwargs)

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        # From several threads too, all ranks must get the calls in one order: each waits for all the others.
        with self._asking:
            calls = [getattr(rank, method).remote(*args, **kwargs) for rank in self._ranks]
        return self._answers(calls)[0]

    def _answers(self, calls: list[Any]) -> list[Any]:
        """Wait for all; at the first failure kill all ranks and raise it.

        Raises:
            TrainerError: the failed rank's own error where it is one of ours, else one that names the rank;
                the same one for whatever is asked later, or by another thread at that time.
        """
        if not calls:
            raise self._failure or TrainerError("this trainer was shut down")
        waiting, answers = list(calls), {}
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            try:
                answers[done[0]] = ray.get(done[0])
            except ray.exceptions.RayError as error:
                self._failure = self._failure or _trainer_error(calls.index(done[0]), len(calls), error)
                self.shutdown()
                raise self._failure from error
        return [answers[c] for c in calls]


def _trainer_error(rank: int, num_ranks: int, error: ray.exceptions.RayError) -> VimeAgentsError:
    cause = getattr(error, "cause", None)
    if isinstance(cause, VimeAgentsError):
        return cause
    kind = "raised" if isinstance(error, ray.exceptions.RayTaskError) else "died"
    return TrainerError(
        f"trainer rank {rank} of {num_ranks} {kind}: {cause or error}. The other ranks were stopped; go on "
        "from the last checkpoint"
    )
