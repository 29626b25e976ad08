"""Quantiles out of counts, against numpy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vime_trainers.losses.histogram import NUM_BINS, RESOLUTION, magnitudes, quantile


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_quantile_is_that_of_the_values_within_the_resolution(share: float) -> None:
    values = np.random.default_rng(3).lognormal(-6, 3, 5000)
    found = quantile(magnitudes(torch.from_numpy(values)), share)
    exact = float(np.quantile(values, share, method="inverted_cdf"))
    assert exact <= found * (1 + 1e-12)
    assert found <= exact * (1 + RESOLUTION) * (1 + 1e-12)


def test_counts_of_parts_add_up_to_those_of_the_whole() -> None:
    values = torch.from_numpy(np.random.default_rng(4).exponential(size=999))
    parts = sum(magnitudes(part) for part in values.split([1, 500, 498]))
    assert torch.equal(torch.as_tensor(parts), magnitudes(values))
    assert magnitudes(values).sum() == 999


def test_zero_infinity_and_nothing() -> None:
    assert quantile(magnitudes(torch.zeros(3)), 0.99) == 0.0
    assert quantile(magnitudes(torch.tensor([1.0, math.inf, math.nan])), 0.99) == math.inf
    assert math.isnan(quantile(magnitudes(torch.empty(0)), 0.99))
    assert magnitudes(torch.empty(0)).shape == (NUM_BINS,)
