"""Soft gates, bounds on probabilities, and a policy in between."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vime_trainers.losses.trust_region import dppo_keeps, interpolated_log_probs, sapo_loss


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_gate_of_sapo_has_the_golden_values_and_reinforces_gradient_on_policy() -> None:
    """Plan 36."""
    ratios = row(1.0, 1.5, 0.5).log()
    old, ones = row(0, 0, 0), torch.ones(3, dtype=torch.bool)
    loss = sapo_loss(ratios, old, row(1, 1, 1), ones)
    assert (-loss).tolist() == pytest.approx([2, 2.489837, 1.510163], abs=1e-6)
    negative = sapo_loss(ratios, old, row(-1, -1, -1), ones, tau_negative=2.0)
    assert negative.tolist() == pytest.approx([2 / (1 + math.exp(-2 * (r - 1))) for r in (1, 1.5, 0.5)])
    log_probs = row(-1, -2, -3).requires_grad_()
    advantages = row(1.5, -0.5, 2)
    sapo_loss(log_probs, log_probs.detach(), advantages, ones).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-1.5, 0.5, -2])


def test_dppo_drops_what_moves_mass_and_not_what_moves_a_ratio() -> None:
    """Plan 36."""
    now, then = row(0.9, 0.02, 0.1, 0.9, 0.1).log(), row(0.6, 0.01, 0.4, 0.6, 0.4).log()
    advantages, mask = row(1, 1, -1, -1, 1), torch.ones(5, dtype=torch.bool)
    # The last two move back towards the policy that sampled.
    assert dppo_keeps(now, then, advantages, mask).tolist() == [False, True, False, True, True]


def test_the_proximal_policy_lies_between() -> None:
    """Plan 37: of weights 3, 8 and, between them, 7."""
    found = interpolated_log_probs(
        row(-0.5, -0.5, -0.5, math.nan),
        row(-1, -1, -1, math.inf),
        torch.tensor([3, 8, 7, -1]),
        torch.tensor([True, True, True, False]),
        proximal_version=7,
        current_version=8,
    )
    # Sampled by the current weights: these. By the proximal ones: those. A prompt's token: untouched.
    assert found.tolist() == pytest.approx([-0.6, -0.5, -1, 0])


def test_masked_entries_may_hold_anything() -> None:
    mask = torch.tensor([True, False, False])
    bad = row(-1.0, math.nan, math.inf).requires_grad_()
    loss = sapo_loss(bad, row(-1, 1e30, 0), row(1, math.nan, -math.inf), mask)
    loss.sum().backward()
    assert loss.tolist() == [-2, 0, 0]
    assert bad.grad is not None
    assert bad.grad.tolist() == [-1, 0, 0]
    assert dppo_keeps(bad, row(-1, 0, 0), row(1, 1, 1), mask).tolist() == [True, False, False]
