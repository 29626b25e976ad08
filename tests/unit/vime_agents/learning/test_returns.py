"""Returns and GAE over trainable tokens: what lies between them is no time step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import RecordError
from vime_agents.learning.advantages import discounted_returns, gae, token_rewards

MASK = np.array([1, 1, 0, 0, 1, 1], bool)

ROWS = st.lists(st.tuples(st.booleans(), st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=12).filter(
    lambda row: any(m for m, _, _ in row)
)
DISCOUNT = st.floats(0.5, 1)


def plain_gae(r: list[float], v: list[float], gamma: float, lambd: float, bootstrap: float) -> list[float]:
    """As the double sum that defines it, over a row without gaps."""
    following = [*v[1:], bootstrap]
    deltas = [r[k] + gamma * following[k] - v[k] for k in range(len(r))]
    return [sum((gamma * lambd) ** (j - k) * deltas[j] for j in range(k, len(r))) for k in range(len(r))]


@given(ROWS, DISCOUNT, DISCOUNT, st.floats(-2, 2))
def test_gae_is_that_of_the_row_without_its_gaps(
    row: list[tuple[bool, float, float]], gamma: float, lambd: float, bootstrap: float
) -> None:
    """Plan 11."""
    mask, rewards, values = (np.array(column) for column in zip(*row, strict=True))
    kept = np.flatnonzero(mask)
    expected = plain_gae(rewards[kept].tolist(), values[kept].tolist(), gamma, lambd, bootstrap)
    advantages, returns = gae(rewards, values, mask, gamma=gamma, lambd=lambd, bootstrap=bootstrap)
    np.testing.assert_allclose(advantages[kept], expected, atol=1e-9)
    np.testing.assert_allclose(returns[kept], advantages[kept] + values[kept], atol=1e-9)
    assert not advantages[~mask].any()
    assert not returns[~mask].any()


@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_values_and_rewards_of_what_a_tool_wrote_are_not_read(junk: float) -> None:
    values = np.array([0.5, 0.4, junk, junk, 0.3, 0.2])
    rewards = np.array([0, 0, junk, junk, 0, 1.0])
    advantages, returns = gae(rewards, values, MASK)
    np.testing.assert_allclose(advantages, [0.5, 0.6, 0, 0, 0.7, 0.8])
    np.testing.assert_allclose(returns, [1, 1, 0, 0, 1, 1])
    assert discounted_returns(rewards, MASK).tolist() == [1, 1, 0, 0, 1, 1]


def test_a_cut_episode_is_worth_what_the_critic_says_of_its_end() -> None:
    advantages, _ = gae([0.0, 0.0], [0.0, 0.0], np.ones(2, bool), gamma=0.5, bootstrap=8.0)
    assert advantages.tolist() == [2.0, 4.0]


@given(ROWS, DISCOUNT)
def test_with_lambda_one_gae_is_returns_minus_values(
    row: list[tuple[bool, float, float]], gamma: float
) -> None:
    mask, rewards, values = (np.array(column) for column in zip(*row, strict=True))
    advantages, returns = gae(rewards, values, mask, gamma=gamma)
    np.testing.assert_allclose(returns, discounted_returns(rewards, mask, gamma), atol=1e-9)
    np.testing.assert_allclose(advantages[mask], (returns - values)[mask], atol=1e-9)


def test_each_reward_goes_to_the_last_trainable_token_before_the_end_of_its_turn() -> None:
    # Turns end at 1 (nothing trainable yet), 3 and 6; the first one's reward was caused by no token.
    mask = np.array([0, 1, 0, 1, 0, 0], bool)
    rewards = token_rewards(mask, 1.0, turn_ends=[1, 3, 6], turns=[100.0, 0.25, 0.5])
    assert rewards.tolist() == [0, 0.25, 0, 1.5, 0, 0]


def test_returns_may_discount_turns_and_tokens_apart() -> None:
    discounts = [1.0, 0.5, 1.0, 1.0]
    assert discounted_returns([0, 0, 0, 8.0], np.ones(4, bool), discounts).tolist() == [4, 4, 8, 8]


def test_rewards_without_a_trainable_token_or_a_turn_are_refused() -> None:
    with pytest.raises(RecordError, match="0 trainable tokens"):
        token_rewards(np.zeros(3, bool), 1.0)
    with pytest.raises(RecordError, match="1 turn ends"):
        token_rewards(np.ones(3, bool), 1.0, turn_ends=[3])
