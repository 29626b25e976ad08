"""Expected values are worked out by hand from the formulas."""

import math

import pytest
import torch

from vime_trainers.losses.corrections import token_tis
from vime_trainers.losses.policy_gradient import cispo_loss, log_ratio, ppo_clip_loss, reinforce_loss


def ppo(ratio: float, advantage: float, *, dual_clip: float | None = 3.0) -> tuple[float, float, bool]:
    """Loss, gradient with respect to the log-prob, and whether the clip took the gradient, at one token."""
    log_prob = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    old, advantages = (
        torch.tensor([-1.0], dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
    )
    loss, found, clipped = ppo_clip_loss(
        log_prob,
        old,
        advantages,
        torch.tensor([True]),
        eps_clip=0.2,
        eps_clip_high=0.28,
        dual_clip=dual_clip,
    )
    assert found.item() == pytest.approx(ratio)
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    return loss.item(), gradient.item(), clipped.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.25, 1.0, -1.25, -1.25),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, -1.0, 0.8, 0.0),
        (4.0, -1.0, 3.0, 0.0),
    ],
)
def test_ppo_value_gradient_and_clip_flag(ratio, advantage, loss, gradient):
    """Plan 18."""
    found = ppo(ratio, advantage)
    assert found[:2] == pytest.approx((loss, gradient), abs=1e-12)
    assert found[2] is (gradient == 0.0)


def test_without_dual_clip_a_large_ratio_at_a_negative_advantage_is_not_bounded():
    assert ppo(4.0, -1.0, dual_clip=None) == (pytest.approx(4.0), pytest.approx(4.0), False)


@pytest.mark.parametrize(
    ("log_prob", "advantage", "loss", "gradient"),
    [
        (-0.9, 1.0, -1.349859, -1.349859),
        (-0.5, 1.0, -1.563396, 0.0),
        (-1.6, -1.0, 0.977122, 0.0),
        (-0.9, -1.0, 1.349859, 1.349859),
    ],
)
def test_ppo_times_truncated_importance_weight(log_prob, advantage, loss, gradient):
    """Three policies: rollout -1.2, old -1, current `log_prob`; exp(0.2) = 1.221403 is below the bound."""
    mask = torch.tensor([True])
    old, rollout = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.2], dtype=torch.float64)
    current = torch.tensor([log_prob], dtype=torch.float64, requires_grad=True)
    weight, truncated = token_tis(old, rollout, mask, clip=2.0)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    value, _, _ = ppo_clip_loss(current, old, advantages, mask, eps_clip=0.2, eps_clip_high=0.28)
    total = (weight * value).sum()
    assert weight.item() == pytest.approx(1.221403, abs=1e-6)
    assert not truncated.item()
    assert total.item() == pytest.approx(loss, abs=1e-6)
    assert torch.autograd.grad(total, current)[0].item() == pytest.approx(gradient, abs=1e-6)


def test_on_policy_ppo_and_reinforce_have_the_same_gradient():
    torch.manual_seed(0)
    log_probs = (-torch.rand(50, dtype=torch.float64)).requires_grad_()
    advantages, mask = torch.randn(50, dtype=torch.float64), torch.ones(50, dtype=torch.bool)
    ppo_value = ppo_clip_loss(
        log_probs, log_probs.detach(), advantages, mask, eps_clip=0.2, eps_clip_high=0.2
    )[0]
    (first,) = torch.autograd.grad(ppo_value.sum(), log_probs)
    (second,) = torch.autograd.grad(reinforce_loss(log_probs, advantages, mask).sum(), log_probs)
    assert torch.equal(first, second)
    assert torch.equal(second, -advantages)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_entries_may_hold_anything(junk):
    mask = torch.tensor([True, False])
    log_probs = torch.tensor([-0.7, junk], requires_grad=True)
    old, advantages = torch.tensor([-0.9, junk]), torch.tensor([2.0, junk])
    losses = [
        ppo_clip_loss(log_probs, old, advantages, mask, eps_clip=0.5, eps_clip_high=0.5)[0],
        reinforce_loss(log_probs, advantages, mask),
        cispo_loss(log_probs, old, advantages, mask, eps_clip=0.5, eps_clip_high=0.1)[0],
    ]
    for loss, value in zip(losses, (-2 * math.exp(0.2), 1.4, 1.1 * 1.4), strict=True):
        assert loss.tolist() == pytest.approx([value, 0.0])
        (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
        assert torch.isfinite(gradient).all()
        assert gradient[1] == 0
    weight, truncated = token_tis(old, log_probs, mask, clip=2.0)
    assert weight.tolist() == pytest.approx([math.exp(-0.2), 1.0])
    assert truncated.tolist() == [False, False]


@pytest.mark.parametrize("gap", [50.0, -50.0])
def test_extreme_ratios_stay_finite_and_are_reported_as_clamped(gap):
    """Plan 39."""
    log_probs = torch.tensor([-1.0 + gap, -1.0], requires_grad=True)
    old, mask = torch.tensor([-1.0, -1.0]), torch.tensor([True, True])
    ratio, clamped = log_ratio(log_probs, old, mask)
    assert clamped.tolist() == [True, False]
    assert ratio.tolist() == [math.copysign(20.0, gap), 0.0]
    for advantage in (1.0, -1.0):
        loss = ppo_clip_loss(
            log_probs, old, torch.full((2,), advantage), mask, eps_clip=0.2, eps_clip_high=0.2
        )[0]
        assert torch.isfinite(loss).all()
        assert torch.isfinite(torch.autograd.grad(loss.sum(), log_probs)[0]).all()
    weight, _ = token_tis(log_probs, torch.tensor([-80.0, -1.0]), mask, clip=2.0)
    assert torch.isfinite(weight).all()


def test_without_a_lower_bound_cispo_keeps_small_weights():
    """Plan 19: The paper has the upper bound alone: a ratio of 0.5 weighs 0.5."""
    old = torch.tensor([-1.0 - math.log(0.5), -1.0 - math.log(2.0)], dtype=torch.float64)
    log_probs = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    advantages, mask = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    loss, ratio, clipped = cispo_loss(log_probs, old, advantages, mask, eps_clip=1.0, eps_clip_high=0.28)
    assert loss.tolist() == pytest.approx([0.5, 1.28])
    assert torch.autograd.grad(loss.sum(), log_probs)[0].tolist() == pytest.approx([-0.5, -1.28])
    assert ratio.tolist() == pytest.approx([0.5, 2.0])
    assert clipped.tolist() == [False, True]
