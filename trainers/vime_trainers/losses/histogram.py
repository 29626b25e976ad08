"""Counts of magnitudes in narrow bins: sums over micro-batches and ranks, and quantiles out of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOW, HIGH, PER_DECADE = -9, 3, 50
NUM_BINS = (HIGH - LOW) * PER_DECADE + 2
"""Powers of ten between which bins lie, 50 for each; one more for what is below, one for what is above."""

RESOLUTION = 10 ** (1 / PER_DECADE) - 1
"""A quantile is too large by at most this share: 4.7 %."""


def magnitudes(values: Tensor) -> Tensor:
    """[NUM_BINS] how many of the values >= 0 are in each bin, float64. NaN counts as above all bins."""
    exponents = torch.log10(values.detach().double())
    places = torch.ceil((exponents - LOW) * PER_DECADE).nan_to_num(nan=NUM_BINS).clamp(0, NUM_BINS - 1)
    return torch.bincount(places.long(), minlength=NUM_BINS).double()


def quantile(counts: Tensor, share: float) -> float:
    """The upper edge of the bin that holds the quantile: never below it, and above by `RESOLUTION` at most.

    Below all bins it is 0, above them infinity; of no values, NaN.
    """
    total = float(counts.sum())
    if not total:
        return math.nan
    wanted = torch.tensor([max(math.ceil(share * total), 1)], dtype=torch.float64)
    place = int(torch.searchsorted(counts.cumsum(0), wanted))
    if place == 0:
        return 0.0
    return math.inf if place >= NUM_BINS - 1 else 10 ** (LOW + place / PER_DECADE)
