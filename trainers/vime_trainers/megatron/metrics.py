"""Sums over micro-batches and ranks, which the metrics of an update are made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from vime_trainers.losses.gradient_parts import PARTS, part_of
from vime_trainers.losses.histogram import NUM_BINS
from vime_trainers.losses.token_loss import SUMS, TokenLoss
from vime_trainers.megatron.device import device


class Totals:
    """Sums over this rank's micro-batches, then over all ranks."""

    def __init__(self) -> None:
        where = device()
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=where)
        self.max_diff = torch.zeros((), dtype=torch.float64, device=where)
        self.abs_diffs = torch.zeros(NUM_BINS, dtype=torch.float64, device=where)
        self.custom: Counter[str] = Counter()
        self.bad_slots: list[int] = []

    def add(self, result: TokenLoss) -> None:
        """One micro-batch's."""
        self.sums += result.sums
        self.abs_diffs += result.abs_diffs
        self.max_diff = torch.maximum(self.max_diff, result.max_abs_diff.double())
        for name, value in result.custom.items():
            self.custom[name] += value.item()

    def reduce(self) -> tuple[dict[str, float], float]:
        """The sums by name and the largest difference: the same on every rank."""
        sum_over_ranks(self.sums)
        sum_over_ranks(self.abs_diffs)
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        dist.all_reduce(self.max_diff, op=dist.ReduceOp.MAX, group=group)
        _from_last_stage(self.max_diff)
        return dict(zip(SUMS, self.sums.tolist(), strict=True)), self.max_diff.item()

    def reduce_custom(self) -> dict[str, float]:
        """A custom loss's metrics; of tensor-parallel ranks, which all have the same, one counts."""
        found: list[Any] = [None] * dist.get_world_size()
        counts = parallel_state.get_tensor_model_parallel_rank() == 0
        dist.all_gather_object(found, dict(self.custom) if counts else {})
        names = sorted({name for part in found for name in part})
        return {name: math.fsum(part.get(name, 0.0) for part in found) for name in names}


def grad_norms_by_part(chunks: Sequence[Any], optimizer: Any) -> dict[str, float]:
    """Norm of the reduced gradient, before clipping, of each part of the whole model; on every rank.

    Every element counts once: copies on tensor-parallel ranks, a tied embedding's on the last stage, and
    those on data-parallel ranks are left out, where the distributed optimizer leaves each its own shard.

    Args:
        chunks: this rank's wrapped models.
        optimizer: whose gradients they have, after `prepare_grads`.
    """
    squares = torch.zeros(len(PARTS), dtype=torch.float64, device=device())
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            mine = _own_gradient(parameter, optimizer)
            if mine is not None:
                squares[PARTS.index(part_of(name))] += mine.double().square().sum()
    dist.all_reduce(squares)
    norms = dict(zip(PARTS, squares.sqrt().tolist(), strict=True))
    return {f"grad_norm/{part}": norm for part, norm in norms.items() if norm}


def _own_gradient(parameter: torch.nn.Parameter, optimizer: Any) -> Tensor | None:
    """What this rank counts of a parameter's gradient."""
    if not parameter.requires_grad or not param_is_not_shared(parameter):
        return None
    if not param_is_not_tensor_parallel_duplicate(parameter):
        return None
    gradient = parameter.main_grad.flatten()
    sharded = [o for o in optimizer.chained_optimizers if isinstance(o, DistributedOptimizer)]
    for chained in sharded:
        if parameter in chained.model_param_gbuf_map:
            owned = chained._get_model_param_range_map(parameter)["param"]
            return gradient[owned.start : owned.end]
    if sharded:
        return None  # another rank's shard
    expert = not getattr(parameter, "allreduce", True)
    rank = (
        parallel_state.get_expert_data_parallel_rank()
        if expert
        else parallel_state.get_data_parallel_rank(with_context_parallel=True)
    )
    return gradient if rank == 0 else None


def largest_over_ranks(value: float) -> float:
    """The largest of all ranks' values, on every rank."""
    found = torch.tensor(value, dtype=torch.float64, device=device())
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def sum_over_ranks(values: Tensor) -> None:
    """Add up over data- and context-parallel ranks, and hand to the stages that compute no loss."""
    dist.all_reduce(values, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    _from_last_stage(values)


def _from_last_stage(values: Tensor) -> None:
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() > 1:
        dist.broadcast(values, src=parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
