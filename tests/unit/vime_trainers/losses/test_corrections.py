import math

import pytest
import torch

from vime_trainers.losses.corrections import (
    abs_difference,
    effective_sample_share,
    geometric_accept,
    icepop,
    sequence_mask,
    sequence_tis,
    token_tis,
    veto_accept,
)
from vime_trainers.losses.kl import k2, k3
from vime_trainers.losses.rows import Rows

LOG_RHO = torch.tensor([0.1, -0.2, 1.0, -3.0, 0.0], dtype=torch.float64)
ZEROS, ALL = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.bool)


def test_token_tis_truncates_above_only():
    weights, truncated = token_tis(LOG_RHO, ZEROS, ALL, clip=2.0)
    assert weights.tolist() == pytest.approx([1.105171, 0.818731, 2.0, 0.049787, 1.0], abs=1e-6)
    assert truncated.tolist() == [False, False, True, False, False]


def test_token_tis_carries_no_gradient():
    old = LOG_RHO.clone().requires_grad_()
    assert not token_tis(old, ZEROS, ALL, clip=2.0)[0].requires_grad


def test_mismatch_metrics():
    """Plan 23."""
    assert k2(LOG_RHO, ZEROS, ALL).mean().item() == pytest.approx(1.005)
    # Samples of the rollout policy: rho - 1 - log rho, with rho = trainer / rollout.
    assert k3(ZEROS, LOG_RHO, ALL).mean().item() == pytest.approx(0.558394, abs=1e-6)
    assert abs_difference(LOG_RHO, ZEROS, ALL).tolist() == pytest.approx([0.1, 0.2, 1.0, 3.0, 0.0])


def test_effective_sample_share():
    # Weights [1, 1, 1, 5], then [3, 3]
    """Plan 26."""
    assert effective_sample_share(8.0, 28.0, 4) == pytest.approx(0.571429, abs=1e-6)
    assert effective_sample_share(6.0, 18.0, 2) == pytest.approx(1.0)
    assert effective_sample_share(0.0, 0.0, 2) == 0.0  # every weight was masked


def test_masked_positions_do_not_reach_the_difference():
    mask = torch.tensor([True, False])
    found = abs_difference(torch.tensor([-1.0, math.nan]), torch.tensor([-1.5, math.inf]), mask)
    assert found.tolist() == pytest.approx([0.5, 0.0])


# Rows of log-ratios [0.1, -0.2, 1.0] and [-3.0, 0.0].
ROWS = Rows(torch.tensor([0, 0, 0, 1, 1]), 2)


def test_a_row_is_weighted_by_its_own_product():
    weights, truncated = sequence_tis(LOG_RHO, ZEROS, ALL, ROWS, clip=2.0, clip_low=0.1)
    assert weights.tolist() == pytest.approx([2.0] * 3 + [0.1] * 2)
    assert truncated.tolist() == [True] * 5
    weights, masked = sequence_mask(LOG_RHO, ZEROS, ALL, ROWS, low=0.5, high=10.0)
    assert weights.tolist() == pytest.approx([math.exp(0.9)] * 3 + [0.0] * 2)
    assert masked.tolist() == [False] * 3 + [True] * 2


def test_the_geometric_mean_does_not_grow_with_the_length():
    """Plan 24: Means exp(0.3) = 1.35 and exp(-1.5) = 0.22; 1.1 a token is 1.1 whatever the length."""
    assert geometric_accept(LOG_RHO, ZEROS, ALL, ROWS, low=0.9, high=1.4).tolist() == [True] * 3 + [False] * 2
    for length in (10, 1000):
        row = torch.full((length,), math.log(1.1), dtype=torch.float64)
        everything = torch.ones(length, dtype=torch.bool)
        pair = (row, torch.zeros_like(row), everything, Rows.single(row))
        assert geometric_accept(*pair, low=0.9, high=1.11).all()
        assert not geometric_accept(*pair, low=0.9, high=1.09).any()
    whole = Rows.single(LOG_RHO)
    # 0.657047 for all five
    assert geometric_accept(LOG_RHO, ZEROS, ALL, whole, low=0.657, high=0.6571).all()


def test_one_outlier_vetoes_its_row_on_either_side():
    assert veto_accept(LOG_RHO, ZEROS, ALL, ROWS, low=0.1).tolist() == [True] * 3 + [False] * 2
    assert veto_accept(LOG_RHO, ZEROS, ALL, ROWS, low=1e-4, high=2.5).tolist() == [False] * 3 + [True] * 2
    assert veto_accept(LOG_RHO, ZEROS, ALL, ROWS, low=1e-4).all()


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_positions_decide_nothing(junk):
    mask = torch.tensor([True, True, True, False, True])
    old = torch.where(mask, LOG_RHO, torch.tensor(junk, dtype=torch.float64))
    pair = (old, ZEROS, mask)
    assert geometric_accept(*pair, ROWS, low=0.9, high=1.4).all()
    assert veto_accept(*pair, ROWS, low=0.1).all()
    weights, _ = sequence_tis(*pair, ROWS, clip=5.0)
    assert weights.tolist() == pytest.approx([math.exp(0.9)] * 3 + [1.0] * 2)
    weights, masked = icepop(*pair, low=0.5, high=2.0)
    assert weights.tolist() == pytest.approx([math.exp(0.1), math.exp(-0.2), 0.0, 1.0, 1.0])
    assert masked.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("level", ["token", "row"])
def test_weights_are_detached_and_finite_at_extreme_gaps(level):
    """Not detached, `-w A l` would get the term `-A l dw` and be another objective."""
    old = torch.tensor([60.0, -60.0, 0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    rows = Rows(torch.tensor([0, 1, 0, 0, 0]), 2)
    found = (
        [token_tis(old, ZEROS, ALL, clip=2.0)[0], icepop(old, ZEROS, ALL, low=0.5, high=2.0)[0]]
        if level == "token"
        else [
            sequence_tis(old, ZEROS, ALL, rows, clip=math.inf)[0],
            sequence_mask(old, ZEROS, ALL, rows, low=0.5, high=2.0)[0],
        ]
    )
    for weights in found:
        assert torch.isfinite(weights).all()
        assert not weights.requires_grad
