"""Distributed checkpoints (`torch_dist`): weights, optimizer, counters, random state.

They can be read back under other parallel sizes. With torch's own AdamW (no Transformer Engine, no Apex),
megatron-core's distributed optimizer needs three corrections, all here: `_prime_adam`, `_allow_missing_step`
and `_unshare_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from vime_agents.errors import CheckpointError


def save_checkpoint(folder: Path, model: Sequence[Any], optimizer: Any, counters: dict[str, Any]) -> None:
    """Write everything into the empty folder; a collective.

    Raises:
        CheckpointError: the folder is missing or not empty, or cannot be written.
    """
    if not folder.is_dir() or any(folder.iterdir()):
        raise CheckpointError(f"checkpoint folder {folder} must exist and be empty")
    torch.distributed.barrier()  # no rank may write before all have looked
    _prime_adam(optimizer)
    state = _sharded_state(model, optimizer, is_loading=False)
    state["counters"] = counters
    state["rng"] = torch.get_rng_state()
    try:
        dist_checkpointing.save(state, str(folder), validate_access_integrity=False)
    except (OSError, CheckpointingException) as error:
        raise CheckpointError(f"cannot write a checkpoint to {folder}: {error}") from error


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
