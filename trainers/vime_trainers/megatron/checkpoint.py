"""Distributed checkpoints (`torch_dist`): weights, optimizer, counters, random state.

They can be read back under other parallel sizes. With torch's own AdamW (no Transformer Engine, no Apex),
megatron-core's distributed optimizer needs three corrections, all here: `_prime_adam`, `_allow_missing_step`
and `_unshare_steps`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch.distributed.checkpoint import CheckpointException

from vime_agents.errors import CheckpointError, ContractError

_LAYOUT_HINT = (
    "Where ranks share experts, megatron-core keeps the experts' optimizer state apart, under names that "
    "depend on whether a pipeline stage has such experts: keep --expert-model-parallel-size and "
    "--pipeline-model-parallel-size as they were, or begin a new run from what --save-hf wrote. All else of "
    "the model must be the same too"
)


def save_checkpoint(folder: Path, model: Sequence[Any], optimizer: Any, counters: dict[str, Any]) -> None:
    """Write everything into the empty folder; a collective.

    Raises:
        CheckpointError: the folder is missing or not empty, or cannot be written.
    """
    request = plan_checkpoint(folder, model, optimizer, counters)
    with _writing(folder):
        request.execute_sync()


def plan_checkpoint(
    folder: Path, model: Sequence[Any], optimizer: Any, counters: dict[str, Any]
) -> AsyncRequest:
    """What remains to be written into the empty folder, for `save_checkpoint` or `BackgroundSave`.

    Counters, random state and whatever else is no tensor are written here. A collective.

    Raises:
        CheckpointError: the folder is missing or not empty, or cannot be written.
    """
    if not folder.is_dir() or any(folder.iterdir()):
        raise CheckpointError(f"checkpoint folder {folder} must exist and be empty")
    dist.barrier()  # no rank may write before all have looked
    _prime_adam(optimizer)
    state = _sharded_state(model, optimizer, is_loading=False)
    state["counters"] = counters
    state["rng"] = torch.get_rng_state()
    with _writing(folder):
        return dist_checkpointing.save(
            state, str(folder), validate_access_integrity=False, async_sharded_save=True
        )


class BackgroundSave:
    """A checkpoint that is being written while training goes on; one at a time.

    Each rank forks a process, which writes the weights as they were at the fork: later updates do not change
    them. `metadata.json` comes last, once every rank has written.
    """

    def __init__(self) -> None:
        self._queue = AsyncCallsQueue()
        self._folder: Path | None = None

    def refuse_unfinished(self) -> None:
        """Raises ContractError while one is being written."""
        if self._folder is not None:
            raise ContractError(f"the save to {self._folder} is not finished: call finish_saves first")

    def begin(self, folder: Path, requests: Sequence[AsyncRequest]) -> None:
        """Fork and return; a collective.

        Args:
            folder: named in errors.
            requests: written one after the other, since megatron-core has one queue for what writers report.
        """
        self._queue.schedule_async_request(
            AsyncRequest(
                async_fn=_write_in_turn,
                async_fn_args=(requests, None),
                preload_fn=lambda: [_staged(request) for request in requests],
                finalize_fns=[lambda: _finish_in_turn(requests)],
            )
        )
        self._folder = folder

    def finish(self, *, wait: bool) -> bool:
        """Whether nothing is left to write; with `wait`, after it is written. A collective.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._folder is None:
            return True
        try:
            with _writing(self._folder):
                self._queue.maybe_finalize_async_calls(blocking=wait)
        finally:
            if not self._queue.get_num_unfinalized_calls():
                self._folder = None
        return self._folder is None


def _staged(request: AsyncRequest) -> list[Any]:
    """The arguments of a request's writer, its tensors in the host's memory."""
    arguments = list(request.async_fn_args)
    if request.preload_fn is not None:
        arguments[1] = request.preload_fn()
    return arguments


def _write_in_turn(requests: Sequence[AsyncRequest], arguments: Sequence[list[Any]]) -> None:
    for request, args in zip(requests, arguments, strict=True):
        if request.async_fn is not None:
            request.async_fn(*args, **request.async_fn_kwargs)


def _finish_in_turn(requests: Sequence[AsyncRequest]) -> None:
    """Ends every request, also after one that failed: what writers report must not stay in their queue."""
    failures: list[CheckpointException] = []
    for request in requests:
        try:
            for finish in request.finalize_fns:
                finish()
        except CheckpointException as error:
            failures.append(error)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Names the folder in what goes wrong, on every rank."""
    try:
        yield
    except (OSError, CheckpointingException) as error:
        raise CheckpointError(f"cannot write a checkpoint to {folder}: {error}") from error
    except CheckpointException as error:
        # All ranks are here; the first one alone knows why.
        why = [f"rank {rank}: {failure[0]!r}" for rank, failure in error.failures.items()]
        dist.broadcast_object_list(said := ["; ".join(why)])
        raise CheckpointError(
            f"cannot write a checkpoint to {folder}: {said[0]}. Is the disk full, or was a writer killed?"
        ) from error


def load_checkpoint(folder: Path, model: Sequence[Any], optimizer: Any) -> dict[str, Any]:
    """Read into the model and the optimizer; returns the counters. A collective.

    Raises:
        CheckpointError: there is no complete checkpoint, or it is of another model or optimizer.
    """
    if not (folder / "metadata.json").is_file():
        raise CheckpointError(f"no complete checkpoint in {folder}: metadata.json is written last")
    _prime_adam(optimizer)
    try:
        state = dist_checkpointing.load(_sharded_state(model, optimizer, is_loading=True), str(folder))
        for index, part in enumerate(model):
            part.load_state_dict(state["model"][str(index)])
        _add_first_step(state["optimizer"])
        optimizer.load_state_dict(state["optimizer"])
    except (OSError, KeyError, ValueError, CheckpointingException) as error:
        raise CheckpointError(
            f"the checkpoint in {folder} does not fit this trainer: {error}. The model, --lr and "
            "--use-distributed-optimizer must be those that it was saved with"
        ) from error
    except CheckpointException as error:
        (why, _), *_ = error.failures.values()
        missing = str(why).partition(" from model not in state dict")[0]
        raise CheckpointError(
            f"the checkpoint in {folder} does not fit this trainer: {missing}. {_LAYOUT_HINT}"
        ) from error
    _unshare_steps(optimizer)
    torch.set_rng_state(state["rng"])
    return state["counters"]


def _sharded_state(model: Sequence[Any], optimizer: Any, *, is_loading: bool) -> dict[str, Any]:
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    weights = {str(i): part.sharded_state_dict(metadata=metadata) for i, part in enumerate(model)}
    return {
        "model": weights,
        "optimizer": optimizer.sharded_state_dict(weights, is_loading=is_loading, metadata=metadata),
    }


def _torch_adams(optimizer: Any) -> list[Any]:
    """The chained optimizers that keep `step` for each parameter, as torch does."""
    return [o for o in optimizer.chained_optimizers if isinstance(o.optimizer, torch.optim.Optimizer)]


def _prime_adam(optimizer: Any) -> None:
    """Give Adam its state before the first step: it is described, and saved, only where it exists."""
    for chained in _torch_adams(optimizer):
        for group in chained.optimizer.param_groups:
            for parameter in group["params"]:
                state = chained.optimizer.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)


def _add_first_step(state: Any) -> None:
    """A step of 0 is left out of what is saved: of an optimizer that has made none."""
    if not isinstance(state, dict):
        return
    found = state.get("state")
    if isinstance(found, dict) and "param_groups" in state and found:
        if "common_step" not in found and not any("step" in s for s in found.values()):
            found["common_step"] = torch.tensor(0.0)
        return
    for part in state.values():
        _add_first_step(part)


def _unshare_steps(optimizer: Any) -> None:
    """Loading leaves one step tensor to all parameters, which would be increased once for each of them."""
    for chained in _torch_adams(optimizer):
        for state in chained.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()


def _allow_missing_step() -> None:
    """Loading has set `step` already, and then looks for it once more among the tensors to be copied."""
    original = DistributedOptimizer._set_main_param_and_optimizer_states

    def with_step(self: Any, model_param: Any, tensors: dict[str, Any]) -> Any:
        group, position = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][position]]
        if "step" in state:
            tensors.setdefault("step", state["step"])
        with torch.no_grad():
            return original(self, model_param, tensors)

    DistributedOptimizer._set_main_param_and_optimizer_states = with_step


_allow_missing_step()
