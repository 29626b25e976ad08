"""Sums over micro-batches and ranks, which the metrics of an update are made of."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from vime_trainers.losses.token_loss import SUMS, TokenLoss
from vime_trainers.megatron.device import device


class Totals:
    """Sums over this rank's micro-batches, then over all ranks."""

    def __init__(self) -> None:
        where = device()
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=where)
        self.max_diff = torch.zeros((), dtype=torch.float64, device=where)
        self.custom: Counter[str] = Counter()
        self.bad_slots: list[int] = []

    def add(self, result: TokenLoss) -> None:
        """One micro-batch's."""
        self.sums += result.sums
        self.max_diff = torch.maximum(self.max_diff, result.max_abs_diff.double())
        for name, value in result.custom.items():
            self.custom[name] += value.item()

    def reduce(self) -> tuple[dict[str, float], float]:
        """The sums by name and the largest difference: the same on every rank."""
        sum_over_ranks(self.sums)
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


def sum_over_ranks(values: Tensor) -> None:
    """Add up over data- and context-parallel ranks, and hand to the stages that compute no loss."""
    dist.all_reduce(values, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    _from_last_stage(values)


def _from_last_stage(values: Tensor) -> None:
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() > 1:
        dist.broadcast(values, src=parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
