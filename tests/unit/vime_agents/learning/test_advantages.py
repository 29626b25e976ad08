"""Advantages against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError, RecordError, UnknownIdError
from vime_agents.learning.advantages import (
    ESTIMATORS,
    dr_grpo,
    get_estimator,
    grpo,
    maxrl,
    no_baseline,
    opo,
    overlong_penalty,
    pass_at_k,
    rloo,
)

EIGHT = [1, 0, 0, 1, 0, 0, 0, 0]


def test_grpo_divides_by_the_sample_standard_deviation() -> None:
    # mean .25, sample standard deviation sqrt(1.5 / 7) = .462910050
    """Plan 1."""
    wins, losses = 0.75 / (0.462910050 + 1e-6), -0.25 / (0.462910050 + 1e-6)
    expected = [wins if r else losses for r in EIGHT]
    np.testing.assert_allclose(grpo(EIGHT), expected, rtol=1e-8)
    np.testing.assert_allclose(grpo(EIGHT)[:2], [1.620181675, -0.540060558], rtol=1e-8)


def test_dr_grpo_only_centres() -> None:
    np.testing.assert_allclose(dr_grpo([1, 2, 3, 4]), [-1.5, -0.5, 0.5, 1.5])


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    """Plan 3."""
    np.testing.assert_allclose(rloo(EIGHT)[:2], [0.857142857, -0.285714286], rtol=1e-8)
    np.testing.assert_allclose(rloo([1, 0, 0, 0]), [1, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - {"reinforce_plus_plus"}))
@pytest.mark.parametrize("rewards", [[0.7], [0.3, 0.3, 0.3], [5, 5, 5], [0.1] * 7])
def test_nothing_is_learned_from_one_episode_or_from_equal_rewards(name: str, rewards: list[float]) -> None:
    """Plan 4."""
    assert ESTIMATORS[name](rewards).tolist() == [0.0] * len(rewards)


REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


@given(REWARDS, st.floats(-5, 5))
def test_advantages_sum_to_zero_and_ignore_a_constant(rewards: list[float], shift: float) -> None:
    """Plan 16."""
    shifted = [r + shift for r in rewards]
    for name in ("dr_grpo", "rloo"):
        advantages = ESTIMATORS[name](rewards)
        assert abs(advantages.sum()) < 1e-8
        np.testing.assert_allclose(ESTIMATORS[name](shifted), advantages, atol=1e-8)


@given(REWARDS)
def test_rloo_is_dr_grpo_times_a_constant(rewards: list[float]) -> None:
    """Plan 3."""
    others = [(sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    np.testing.assert_allclose(rloo(rewards), np.array(rewards) - others, atol=1e-8)


@given(st.lists(st.floats(0, 10), min_size=2, max_size=16), st.floats(0.1, 10))
def test_maxrl_is_centred_and_ignores_the_unit_of_rewards(rewards: list[float], factor: float) -> None:
    advantages = maxrl(rewards)
    assert abs(advantages.sum()) < 1e-7
    if sum(rewards) > 1e-3:
        np.testing.assert_allclose(maxrl([r * factor for r in rewards]), advantages, atol=1e-7)


def test_maxrl_refuses_what_it_cannot_divide_by() -> None:
    assert maxrl([0, 0, 0]).tolist() == [0, 0, 0]
    with pytest.raises(ConfigError, match=r"rewards must be >= 0, got -1"):
        maxrl([1, -1, 2])


@given(REWARDS)
def test_grpo_ignores_the_unit_of_rewards(rewards: list[float]) -> None:
    """Plan 16."""
    if np.std(rewards) > 0.1:
        np.testing.assert_allclose(grpo([r * 100 for r in rewards]), grpo(rewards), atol=1e-3)


@given(REWARDS, st.permutations(range(16)))
def test_an_advantage_belongs_to_the_episode_not_to_its_place(rewards: list[float], order: list[int]) -> None:
    """Plan 16."""
    order = [i for i in order if i < len(rewards)]
    for name, estimator in ESTIMATORS.items():
        if name != "maxrl":
            shuffled = estimator([rewards[i] for i in order])
            np.testing.assert_allclose(shuffled, estimator(rewards)[order], atol=1e-8)


def test_only_the_best_episode_counts_by_its_lead() -> None:
    """Plan 2."""
    assert pass_at_k([1, 0, 0, 0]).tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(pass_at_k([0.2, 0.9, 0.5]), [0, 0.4, 0])
    assert pass_at_k([1, 1, 0]).tolist() == [0, 0, 0]


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6, unique=True))
def test_pass_at_k_is_the_best_minus_the_best_without_each(rewards: list[float]) -> None:
    others = [max(rewards[:i] + rewards[i + 1 :]) for i in range(len(rewards))]
    np.testing.assert_allclose(pass_at_k(rewards), max(rewards) - np.array(others), atol=1e-12)


def test_opo_weighs_the_baseline_by_length() -> None:
    # (10 * 1 + 30 * 0 + 60 * 0.5) / 100 = 0.4
    np.testing.assert_allclose(opo([1, 0, 0.5], [10, 30, 60]), [0.6, -0.4, 0.1])
    np.testing.assert_allclose(opo([1, 2, 6]), dr_grpo([1, 2, 6]))
    assert opo([0.3] * 3, [1, 7, 5]).tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 50)), min_size=2, max_size=8))
def test_opo_advantages_sum_to_zero_when_weighed_by_length(episodes: list[tuple[float, int]]) -> None:
    rewards, lengths = zip(*episodes, strict=True)
    assert abs(np.dot(opo(rewards, lengths), lengths)) < 1e-9


@pytest.mark.parametrize("lengths", [[1], [1, -1], [0, 0]])
def test_opo_refuses_lengths_that_are_none(lengths: list[int]) -> None:
    with pytest.raises(RecordError, match="trainable tokens"):
        opo([1, 0], lengths)


def test_without_a_baseline_rewards_stay_as_they_are() -> None:
    assert no_baseline([0.7]).tolist() == [0.7]
    assert no_baseline([2, 2]).tolist() == [2, 2]


@pytest.mark.parametrize(("max_length", "buffer"), [(100, 0), (100, -1), (100, 101)])
def test_an_overlong_buffer_must_fit(max_length: int, buffer: int) -> None:
    with pytest.raises(ConfigError, match=f"buffer {buffer}"):
        overlong_penalty(10, max_length=max_length, buffer=buffer)


def test_the_overlong_penalty_scales_and_goes_on_past_the_limit() -> None:
    """Plan 14."""
    assert overlong_penalty(90, max_length=100, buffer=20, factor=0.4) == pytest.approx(-0.2)
    assert overlong_penalty(0, max_length=100, buffer=20) == 0.0


def test_an_estimator_is_found_by_name_or_dotted_path() -> None:
    assert get_estimator("grpo") is grpo
    assert get_estimator("vime_agents.learning.advantages:rloo") is rloo
    with pytest.raises(UnknownIdError, match="Did you mean 'grpo'"):
        get_estimator("grpoo")
    with pytest.raises(ConfigError, match="nowhere"):
        get_estimator("nowhere.at_all")
