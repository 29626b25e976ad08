"""Advantages against a critic: over trainable tokens alone, in the order in which they were sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.vime_agents.episodes import make_episode, make_log, with_turn_rewards
from vime_agents.episode import Episode, Outcome
from vime_agents.errors import ConfigError, RecordError
from vime_agents.learning.credit import Credit, CriticEstimator, RowKey
from vime_agents.learning.samples import build_batch, rows_to_value
from vime_agents.token_log import Piece, SampledTokens, TokenLog
from vime_agents.trainer import TrainingSample


def two_and_two() -> Episode:
    """Trainable tokens 1, 2 and 5, 6 of a row of 7: the mask of 6.1 (11) behind a prompt of one token."""
    log = TokenLog()
    for turn, width in ((0, 1), (1, 2)):
        log.extend([Piece(token_ids=(9,) * width, source="user")], turn=turn)
        log.append_sampled(
            SampledTokens(token_ids=(4, 5), logprobs=(-1.0, -1.0), versions=((0, 0, 2),)), turn=turn
        )
    return make_episode("e", "g", 1.0, log=log, num_turns=2)


GOLDEN = np.array([np.nan, 0.5, 0.4, 9, 9, 0.3, 0.2, 100.0])
"""The values of 6.1 (11), and one of the state after the row."""


def sample(
    episode: Episode, values: dict[RowKey, np.ndarray], *, credit: Credit, **settings
) -> TrainingSample:
    estimator = CriticEstimator(values=values, **settings)
    (found,) = build_batch([episode], estimator=estimator, credit=credit, temperature=1.0).samples
    return found


@pytest.mark.parametrize(
    ("gamma", "lambd", "advantages", "returns"),
    [
        (1.0, 1.0, [0.5, 0.6, 0.7, 0.8], [1, 1, 1, 1]),
        (1.0, 0.95, [0.40065, 0.527, 0.66, 0.8], [0.90065, 0.927, 0.96, 1]),
        (0.99, 0.95, [0.374433479, 0.5087012, 0.6504, 0.8], [0.874433479, 0.9087012, 0.9504, 1]),
    ],
)
def test_golden_values(gamma: float, lambd: float, advantages: list[float], returns: list[float]) -> None:
    """Plan 11."""
    found = sample(two_and_two(), {("e", "agent", 0): GOLDEN}, credit=Credit(gamma=gamma), lambd=lambd)
    assert found.loss_mask.astype(int).tolist() == [0, 1, 1, 0, 0, 1, 1]
    assert found.values is not None
    assert found.returns is not None
    np.testing.assert_allclose(found.advantages[found.loss_mask], advantages, rtol=1e-6)
    np.testing.assert_allclose(found.returns[found.loss_mask], returns, rtol=1e-6)
    np.testing.assert_allclose(found.values[found.loss_mask], [0.5, 0.4, 0.3, 0.2])
    assert not found.returns[~found.loss_mask].any()


def test_the_reward_is_on_the_last_trainable_token_not_on_the_last_of_the_row() -> None:
    """Plan 12."""
    log = make_log()  # 2 prompt tokens, 3 sampled ones
    log.extend([Piece(token_ids=(7, 7), source="tool")], turn=1)
    episode = make_episode("e", "g", 1.0, log=log)
    values = {("e", "agent", 0): np.array([9, 9, 0.5, 0.4, 0.3, 9, 9, 9])}
    found = sample(episode, values, credit=Credit())
    np.testing.assert_allclose(found.advantages, [0, 0, 0.5, 0.6, 0.7, 0, 0], rtol=1e-6)


def test_a_cut_episode_is_worth_the_value_after_its_row_only_when_asked_for() -> None:
    values = {("e", "agent", 0): GOLDEN}
    whole = two_and_two()
    cut = replace(whole, outcome=Outcome(kind="truncated", stop="max_turns"))
    last = {
        (name, on): float(sample(e, values, credit=Credit(gamma=0.5), bootstrap_truncated=on).advantages[-1])
        for name, e in (("whole", whole), ("cut", cut))
        for on in (False, True)
    }
    # reward 1 - value 0.2, and 0.5 * 100 of the future
    assert last == pytest.approx(
        {("whole", False): 0.8, ("whole", True): 0.8, ("cut", False): 0.8, ("cut", True): 50.8}
    )


def test_the_rows_of_a_fork_are_one_stream_in_the_order_of_sampling() -> None:
    log = make_log()
    log.fork([Piece(token_ids=(30, 31), source="user")], turn=1)
    log.append_sampled(
        SampledTokens(token_ids=(40, 41), logprobs=(-0.5, -0.5), versions=((0, 0, 2),)), turn=1
    )
    episode = make_episode("e", "g", 1.0, log=log, num_turns=2)
    values = {
        ("e", "agent", 0): np.array([9, 9, 0.1, 0.2, 0.3, 9]),
        ("e", "agent", 1): np.array([9, 9, 0.4, 0.5, 9]),
    }
    assert {key: len(s) for key, s in rows_to_value([episode]).items()} == {
        ("e", "agent", 0): 5,
        ("e", "agent", 1): 4,
    }
    estimator = CriticEstimator(values=values, lambd=0.0)
    first, second = build_batch([episode], estimator=estimator, temperature=1.0).samples
    np.testing.assert_allclose(first.advantages[2:], [0.1, 0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(second.advantages[2:], [0.1, 0.5], rtol=1e-5)


def test_rewards_of_turns_are_earned_where_they_were_given_and_discounted_between_turns() -> None:
    episode = with_turn_rewards(two_and_two(), 0.25, 0.75)
    credit = Credit(use_turn_rewards=True, turn_gamma=0.5)
    found = sample(episode, {("e", "agent", 0): np.zeros(8)}, credit=credit)
    # 0.25 + 0.5 * 0.75 for the first turn
    np.testing.assert_allclose(found.advantages[found.loss_mask], [0.625, 0.625, 0.75, 0.75])


def test_rows_of_advantage_zero_stay_for_the_critic_and_a_group_of_one_is_enough() -> None:
    values = {("e", "agent", 0): np.array([0, 1, 1, 0, 0, 1, 1, 0.0])}
    found = sample(two_and_two(), values, credit=Credit())
    assert not found.advantages.any()
    assert found.returns is not None
    assert found.returns[found.loss_mask].tolist() == [1, 1, 1, 1]


def test_episodes_without_a_trusted_reward_are_not_valued() -> None:
    assert rows_to_value([make_episode("f", "g", None, cause="engine"), make_episode("u", "g", None)]) == {}


@pytest.mark.parametrize(
    ("values", "told"), [({}, "says nothing of its row 0"), ({("e", "agent", 0): np.zeros(7)}, r"row of 7")]
)
def test_a_value_that_is_missing_or_misplaced_names_the_episode(values, told) -> None:
    with pytest.raises(RecordError, match=told):
        sample(two_and_two(), values, credit=Credit())


def test_a_critic_cannot_do_with_rewards_alone() -> None:
    with pytest.raises(ConfigError, match="critic_advantages"):
        CriticEstimator(values={})([1.0])
