"""Runs inside vLLM's workers: the transfers `file` and `gloo`, which load a whole checkpoint exactly.

vLLM imports this module in each worker (`--worker-extension-cls`); the import registers the transfers, and
`--weight-transfer-config '{"backend": "file"}'` picks one. They are driven over vLLM's own endpoints:
/pause, /start_weight_update, /update_weights, /finish_weight_update, /resume.

Two things differ from vLLM 0.32's own transfers. First, on CPU every weight is packed for its kernel, and a
reload packs again only what was loaded: with tied embeddings nothing is loaded under the output layer's
name, which then silently keeps the old weights. Here it is packed again. Second, tensors are compared with
the served checkpoint by name and shape, and those of a file with their checksums, before the first one is
touched, so that a wrong file leaves the engine with the weights that it had. A broadcast is compared tensor
by tensor, as it arrives.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from vime_agents.serving.hf_folder import check_hf_folder
from vime_trainers.sync.gloo_group import join_group, receive_tensor
from vime_trainers.sync.manifest import check_manifest
from vime_trainers.sync.weight_file import check_tensors, check_version, file_shapes, iterate_file


class WeightSyncExtension:
    """Mixed into vLLM's worker class. Empty: importing this module is what counts."""


class CheckpointTransfer(WeightTransferEngine[Any, Any]):
    """Loads a whole checkpoint in Hugging Face names; subclasses say where it comes from."""

    def init_transfer_engine(self, init_info: Any) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Make the model ready to be loaded layer by layer."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Check, then load. After a refusal the model holds the weights that it had."""
        info = self.parse_update_info(update_info)
        try:
            check_manifest(self._served_shapes(), self.shapes(info), tied=self._tied())
            self.receive_weights(info)
        except BaseException:
            # Puts the old weights back where nothing was loaded, so that a next update starts clean.
            self.finish_weight_update()
            raise
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Any) -> None:
        """Load every tensor."""
        self.model.load_weights(self.tensors(update_info))

    def finish_weight_update(self) -> None:
        """Copy the loaded weights into place and pack them for the kernels."""
        finalize_layerwise_reload(self.model, self.model_config)
        pack_tied_layers(self.model)

    def shutdown(self) -> None:
        """Nothing to release."""

    @abstractmethod
    def shapes(self, info: Any) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of every tensor that is about to come. Raises ValueError to refuse the update."""

    @abstractmethod
    def tensors(self, info: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors."""

    def _served_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return check_hf_folder(self.model_config.model).tensors

    def _tied(self) -> bool:
        return bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))


@torch.no_grad()
def pack_tied_layers(model: torch.nn.Module) -> int:
    """Pack embedding and output layers for the CPU kernels again; returns how many there were."""
    layers = [
        m for m in model.modules() if isinstance(m, VocabParallelEmbedding) and hasattr(m, "cpu_linear")
    ]
    for layer in layers:
        dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    return len(layers)


@dataclass
class FileInit(WeightTransferInitInfo):
    """`file` needs no set-up."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """Where the weights are."""

    path: str
    """A safetensors file that this host can read."""
    version: str
    """The version that the file must say it holds."""


class FileTransfer(CheckpointTransfer):
    """Weights in a safetensors file: on one host in /dev/shm, else on a shared file system."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def shapes(self, info: FileUpdate) -> Mapping[str, tuple[int, ...]]:
        """From the file's header; every byte is compared with its tensor's checksum."""
        check_version(Path(info.path), info.version)
        check_tensors(Path(info.path))
        return file_shapes(Path(info.path))

    def tensors(self, info: FileUpdate) -> Iterator[tuple[str, torch.Tensor]]:
        """From the mapped file."""
        return iterate_file(Path(info.path))


@dataclass
class GlooInit(WeightTransferInitInfo):
    """The group of one trainer rank (0) and every worker of every engine."""

    master_address: str
    master_port: int
    world_size: int
    rank_offset: int = 1
    """Rank of this engine's first worker."""


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):
    """What is broadcast, in this order."""

    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    """`float32`, `bfloat16`, ..."""
    shapes: list[list[int]] = field(default_factory=list)


class GlooTransfer(CheckpointTransfer):
    """Weights broadcast by the trainer over TCP: several hosts, no GPU, no shared file system."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate
    _group: torch.distributed.ProcessGroupGloo | None = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the trainer's group; blocks until all members are there."""
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = join_group(
            init_info.master_address, init_info.master_port, rank=rank, world_size=init_info.world_size
        )

    def shapes(self, info: GlooUpdate) -> Mapping[str, tuple[int, ...]]:
        """As announced."""
        return {name: tuple(shape) for name, shape in zip(info.names, info.shapes, strict=True)}

    def tensors(self, info: GlooUpdate) -> Iterator[tuple[str, torch.Tensor]]:
        """One broadcast each. Raises ValueError, after the last: one arrived damaged, and was not loaded."""
        if self._group is None:
            raise RuntimeError("gloo transfer: /init_weight_transfer_engine was never called")
        damaged: list[str] = []
        for name, dtype_name, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype_name))
            if receive_tensor(self._group, tensor):
                if not damaged:
                    yield name, tensor
            else:
                damaged.append(name)
        if damaged:  # not before: rank 0 would send to nobody
            raise ValueError(
                f"tensor {damaged[0]} arrived damaged; what came before it is loaded, so that the engine "
                "holds a mixture of two versions"
            )

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


# vLLM may import this module more than once in one process, by more than one way.
for _name, _transfer in (("file", FileTransfer), ("gloo", GlooTransfer)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _transfer)
