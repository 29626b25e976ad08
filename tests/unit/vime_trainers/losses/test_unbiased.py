"""Advantages and loss together are the policy gradient: exact sums over every group that can happen."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.vime_agents.episodes import make_episode, with_turn_rewards
from vime_agents.learning.advantages import Estimator, dr_grpo, maxrl, no_baseline, rloo
from vime_agents.learning.credit import Credit
from vime_agents.learning.samples import build_batch
from vime_trainers.losses.policy_gradient import reinforce_loss


def expected_gradient(estimator: Estimator, rewards: list[float], group_size: int) -> list[float]:
    """Of a bandit with one arm for each reward and equal probabilities, for the mean over a group."""
    theta = torch.zeros(len(rewards), dtype=torch.float64, requires_grad=True)
    log_probs = torch.log_softmax(theta, 0)
    total = torch.zeros((), dtype=torch.float64)
    for arms in itertools.product(range(len(rewards)), repeat=group_size):
        probability = log_probs.detach()[list(arms)].sum().exp()
        advantages = torch.from_numpy(estimator([rewards[a] for a in arms]))
        loss = reinforce_loss(log_probs[list(arms)], advantages, torch.ones(group_size, dtype=torch.bool))
        total = total - probability * loss.mean()
    return torch.autograd.grad(total, theta)[0].tolist()


EXACT = np.array([2 / 9, -1 / 9, -1 / 9])
"""p_a (r_a - E[r]) with rewards 1, 0, 0."""


@pytest.mark.parametrize("group_size", [2, 3, 5])
@pytest.mark.parametrize(
    ("estimator", "factor"),
    [(rloo, lambda g: 1.0), (no_baseline, lambda g: 1.0), (dr_grpo, lambda g: (g - 1) / g)],
)
def test_a_bandits_gradient(estimator: Estimator, factor: Callable[[int], float], group_size: int) -> None:
    """RLOO is unbiased; the group's own mean makes the gradient smaller by (G - 1) / G, in its direction."""
    found = expected_gradient(estimator, [1.0, 0.0, 0.0], group_size)
    np.testing.assert_allclose(found, EXACT * factor(group_size), atol=1e-12)


def test_one_step_along_it_raises_the_reward() -> None:
    """Plan 80."""
    theta = torch.tensor(expected_gradient(rloo, [1.0, 0.0, 0.0], 2))
    assert torch.softmax(theta, 0)[0].item() == pytest.approx(0.411005, abs=1e-6)


def climbed(sign: float) -> float:
    """Probability of the rewarded arm after 100 steps of rate 1 along the exact gradient, times `sign`."""
    theta, rewards = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for _ in range(100):
        p = torch.softmax(theta, 0).requires_grad_()
        log_probs = p.detach().log().requires_grad_()
        advantages = sign * (rewards - p.detach() @ rewards)
        loss = reinforce_loss(log_probs, advantages, torch.ones(3, dtype=torch.bool))
        (slope,) = torch.autograd.grad((p.detach() * loss).sum(), log_probs)
        theta = theta - (slope - p.detach() * slope.sum())  # through the softmax
    return torch.softmax(theta, 0)[0].item()


def test_a_hundred_steps_solve_the_bandit_and_the_other_way_round_unlearn_it() -> None:
    """Plan 80, and the flipped sign of 81."""
    assert climbed(1.0) == pytest.approx(0.9929, abs=5e-5)
    assert climbed(-1.0) < 0.01


def test_sampled_groups_have_the_bias_of_their_own_mean_and_rloo_has_none() -> None:
    """Plan 80: 4096 groups of 8; (G - 1) / G of the gradient, within four standard errors."""
    rng = np.random.default_rng(0)
    arms = rng.integers(0, 3, (4096, 8))
    for estimator, factor in ((dr_grpo, 7 / 8), (rloo, 1.0)):
        found = []
        for group in arms:
            advantages = estimator((group == 0).astype(float).tolist())
            # d log p(a) / d theta = onehot(a) - 1 / 3
            found.append(((np.eye(3)[group] - 1 / 3) * advantages[:, None]).mean(0))
        error = np.std(found, axis=0) / 64
        assert (abs(np.mean(found, axis=0) - EXACT * factor) < 4 * error).all()
        assert (error < 2e-3).all()


def test_maxrl_follows_the_likelihood_of_success_up_to_the_order_of_the_group_size() -> None:
    """`sum over k < G of (1 - p)^(k - 1) / k`-truncated log p: its slope is (1 - (1 - p)^(G - 1)) / p."""
    for group_size in (2, 3, 5):
        p = 1 / 3
        # d p / d theta_0 = EXACT[0]; the mean over the group divides by G what the paper sums over successes.
        slope = (1 - (1 - p) ** (group_size - 1)) / p
        found = expected_gradient(maxrl, [1.0, 0.0, 0.0], group_size)
        np.testing.assert_allclose(found, EXACT * slope, atol=1e-12)


FIRST, SECOND = [0.3, -0.2], [[0.1, 0.4], [-0.5, 0.2]]
R1, R2 = [0.0, 1.0], [[2.0, 0.0], [0.5, 1.5]]


def two_turns(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the first action [2], and of the second given the first [2, 2]."""
    return torch.log_softmax(theta[:2], 0), torch.log_softmax(theta[2:].reshape(2, 2), 1)


@pytest.mark.parametrize("use_turn_rewards", [False, True])
def test_rewards_to_go_have_the_gradient_of_the_whole_return(use_turn_rewards: bool) -> None:
    """Two turns of two actions, groups of two with RLOO: exact, with credit by the turn or without."""
    theta = torch.tensor([*FIRST, *SECOND[0], *SECOND[1]], dtype=torch.float64, requires_grad=True)
    first, second = two_turns(theta)
    paths = list(itertools.product(range(2), repeat=2))
    wanted = sum((first[a] + second[a, b]).exp() * (R1[a] + R2[a][b]) for a, b in paths)
    (exact,) = torch.autograd.grad(wanted, theta, retain_graph=True)

    total = torch.zeros((), dtype=torch.float64)
    for pair in itertools.product(paths, repeat=2):
        episodes = [
            with_turn_rewards(make_episode(name, "g", R1[a] + R2[a][b], num_turns=2), R1[a], R2[a][b])
            for name, (a, b) in zip("xy", pair, strict=True)
        ]
        batch = build_batch(
            episodes,
            estimator=rloo,
            credit=Credit(use_turn_rewards=use_turn_rewards),
            temperature=1.0,
            keep_zero_advantage=True,
        )
        probability = torch.stack([(first[a] + second[a, b]) for a, b in pair]).sum().exp().detach()
        for sample, (a, b) in zip(batch.samples, pair, strict=True):
            by_turn = torch.from_numpy(sample.advantages[sample.loss_mask].reshape(2, 3)[:, 0]).double()
            total = total + probability * (by_turn * torch.stack([first[a], second[a, b]])).sum() / 2
    (found,) = torch.autograd.grad(total, theta)
    np.testing.assert_allclose(found.numpy(), exact.numpy(), atol=1e-6)
