"""Sums over the token rows of a micro-batch, for what is decided by a whole row: ratios, rejection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Which row each token belongs to. A row is one segment: an episode has one, unless it forked."""

    index: Tensor
    """[num_tokens] int64, below `num_rows`."""
    num_rows: int
    all_reduce: Callable[[Tensor], object] | None = None
    """Adds up a tensor in place over the ranks that share the rows (context parallel); None: nobody does."""

    def sum(self, values: Tensor) -> Tensor:
        """[num_tokens] the sum of `values` [num_tokens] over each token's row, detached."""
        totals = torch.zeros(self.num_rows, dtype=torch.float64, device=values.device)
        totals.index_add_(0, self.index, values.detach().double())
        if self.all_reduce is not None:
            self.all_reduce(totals)
        return totals[self.index].to(values.dtype if values.is_floating_point() else torch.float64)

    def mean(self, values: Tensor, mask: Tensor) -> Tensor:
        """[num_tokens] the mean over the trainable tokens of each token's row, detached."""
        total = self.sum(torch.where(mask, values, values.new_zeros(())))
        return total / self.sum(mask.to(values.dtype)).clamp(min=1)

    @staticmethod
    def single(values: Tensor) -> Rows:
        """All tokens in one row."""
        return Rows(torch.zeros(values.shape, dtype=torch.int64, device=values.device), 1)
