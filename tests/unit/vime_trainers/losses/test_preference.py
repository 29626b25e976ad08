"""Losses of pairs."""

from __future__ import annotations

import math

import pytest
import torch

from vime_trainers.losses.preference import dpo_loss, ipo_loss, preference_margin


@pytest.mark.parametrize(
    ("margin", "beta", "loss", "slope"),
    [
        (0.3, 0.1, 0.678260, -0.049250),
        (2.0, 0.1, 0.598139, -0.045017),
        (-1.0, 0.5, 0.974077, -0.311230),
    ],
)
def test_dpo_has_the_golden_values_and_the_formulas(
    margin: float, beta: float, loss: float, slope: float
) -> None:
    """Plan 33."""
    x = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
    found = dpo_loss(x, beta=beta)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert found.item() == pytest.approx(loss, abs=1e-6)
    assert gradient.item() == pytest.approx(slope, abs=1e-6)
    assert found.item() == pytest.approx(math.log(1 + math.exp(-beta * margin)), rel=1e-12)
    assert gradient.item() == pytest.approx(-beta / (1 + math.exp(beta * margin)), rel=1e-12)


def test_ipo_has_the_golden_value() -> None:
    """Plan 33. (0.1 - 5)^2."""
    assert ipo_loss(torch.tensor([0.1]).double(), beta=0.1).item() == pytest.approx(24.01)


def test_a_margin_is_over_trainable_tokens_whatever_the_others_hold() -> None:
    chosen = torch.tensor([[-1.0, -2.0, math.nan]], requires_grad=True)
    rejected = torch.tensor([[math.inf, -0.5]], requires_grad=True)
    sides = (
        chosen,
        torch.tensor([[-1.5, -2.25, 7.0]]),
        torch.tensor([[True, True, False]]),
        rejected,
        torch.tensor([[0.0, -1.5]]),
        torch.tensor([[False, True]]),
    )
    assert preference_margin(*sides).tolist() == [0.75 - 1.0]
    assert preference_margin(*sides, mean=True).tolist() == [0.375 - 1.0]
    preference_margin(*sides).sum().backward()
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert chosen.grad.tolist() == [[1, 1, 0]]
    assert rejected.grad.tolist() == [[0, -1]]


def test_long_replies_keep_the_sign_of_a_small_margin() -> None:
    """4096 tokens of -8.1 nats each: their sums in float32 are 1e-3 apart at best, the margin is 1e-4."""
    log_probs = torch.full((1, 4096), -8.1)
    better = log_probs.double().clone()
    better[0, 0] += 1e-4
    mask, reference = torch.ones(1, 4096, dtype=torch.bool), torch.zeros(1, 4096)
    margin = preference_margin(better, reference, mask, log_probs, reference, mask)
    assert margin.item() == pytest.approx(1e-4, rel=1e-6)
