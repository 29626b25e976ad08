"""Rows that are too long for one forward pass (63 of the test plan): cut or left out, and counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.vime_agents.episodes import make_episode, make_log, with_turn_rewards
from vime_agents.errors import ConfigError
from vime_agents.learning.advantages import dr_grpo, no_baseline
from vime_agents.learning.credit import Credit
from vime_agents.learning.row_limit import RowLimit, num_needed_tokens, truncated
from vime_agents.learning.samples import build_batch
from vime_agents.token_log import Piece, SampledTokens, TokenLog
from vime_agents.trainer import Batch


def cut_at(size: int) -> RowLimit:
    return RowLimit(max_tokens=size, on_excess="truncate")


def drop_above(size: int) -> RowLimit:
    return RowLimit(max_tokens=size, on_excess="drop")


def two_and_one(limit: RowLimit, **settings: object) -> Batch:
    """Rows of 10 tokens (2 prompt, 3 sampled, twice) and of 5; rewards 1 and 0."""
    episodes = [make_episode("a", "g", 1.0, num_turns=2), make_episode("b", "g", 0.0)]
    chosen = {"estimator": dr_grpo, "temperature": 1.0} | settings
    return build_batch(episodes, row_limit=limit, **chosen)


def test_a_cut_row_keeps_its_first_tokens_in_numerator_and_denominator() -> None:
    """Plan 63: cut between tokens; mask, log-probs and ids stay of one length."""
    batch = two_and_one(cut_at(9))
    long, short = batch.samples
    assert long.token_ids.tolist() == [10, 11, 20, 21, 22, 11, 11, 20, 21]
    assert long.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert long.advantages[long.loss_mask].tolist() == [0.5] * 5
    np.testing.assert_allclose(long.weights[long.loss_mask], 1 / 8)
    assert len(short) == 5
    assert batch.metrics["rows_oversized"] == 1
    assert batch.metrics["tokens_lost_to_row_limit"] == 1
    assert batch.metrics["tokens_trained"] == 8


def test_the_reward_moves_to_the_last_trainable_token_that_is_kept() -> None:
    """Plan 63: with gamma 0.5 the last kept token answers for the whole reward, not for a discounted one."""
    whole = make_episode("a", "g", 1.0, num_turns=2)
    settings = {"estimator": no_baseline, "credit": Credit(gamma=0.5), "temperature": 1.0}
    (sample,) = build_batch([whole], row_limit=cut_at(9), **settings).samples
    assert sample.advantages[sample.loss_mask].tolist() == [0.0625, 0.125, 0.25, 0.5, 1.0]


def test_the_reward_of_a_turn_that_was_cut_off_moves_too() -> None:
    episode = with_turn_rewards(make_episode("a", "g", 3.0, num_turns=2), 1.0, 2.0)
    credit = Credit(gamma=0.5, turn_gamma=1.0, use_turn_rewards=True)
    settings = {"estimator": no_baseline, "credit": credit, "temperature": 1.0}
    (sample,) = build_batch([episode], row_limit=cut_at(7), **settings).samples
    assert sample.advantages[sample.loss_mask].tolist() == [0.75, 1.5, 3.0]


def test_a_row_whose_prompt_alone_is_too_long_teaches_nothing_and_its_reward_stays_in_the_baseline() -> None:
    """63: no negative length, no row without a trainable token."""
    log = TokenLog()
    log.extend([Piece(token_ids=tuple(range(20)), source="user")], turn=0)
    log.append_sampled(SampledTokens(token_ids=(5,), logprobs=(-1.0,), versions=((0, 0, 1),)), turn=0)
    episodes = [make_episode("a", "g", 1.0, log=log), make_episode("b", "g", 0.0)]
    batch = build_batch(episodes, estimator=dr_grpo, row_limit=cut_at(8), temperature=1.0)
    (sample,) = batch.samples
    assert sample.episode_id == "b"
    assert sample.advantages[sample.loss_mask].tolist() == [-0.5] * 3
    assert (batch.metrics["rows_oversized"], batch.metrics["tokens_lost_to_row_limit"]) == (1, 1)


def test_a_dropped_row_leaves_the_loss_and_stays_in_the_baseline() -> None:
    batch = two_and_one(drop_above(9))
    (short,) = batch.samples
    assert short.advantages[short.loss_mask].tolist() == [-0.5] * 3
    np.testing.assert_allclose(short.weights[short.loss_mask], 1 / 3)
    assert batch.metrics["reward_mean"] == 0.5
    assert (batch.metrics["rows_oversized"], batch.metrics["tokens_lost_to_row_limit"]) == (1, 6)


def test_the_other_rows_of_an_episode_answer_for_its_reward_after_one_was_dropped() -> None:
    log = make_log(2)
    log.fork([Piece(token_ids=(30, 31), source="user")], turn=2)
    log.append_sampled(SampledTokens(token_ids=(40,), logprobs=(-0.5,), versions=((0, 0, 1),)), turn=2)
    episode = make_episode("a", "g", 1.0, log=log, num_turns=3)
    settings = {"estimator": no_baseline, "credit": Credit(gamma=0.5), "temperature": 1.0}
    (sample,) = build_batch([episode], row_limit=drop_above(5), **settings).samples
    assert sample.id == "a/agent/1"
    assert sample.advantages.tolist() == [0, 0, 1.0]


@pytest.mark.parametrize("on_excess", ["truncate", "drop"])
def test_what_follows_the_last_trainable_token_needs_no_room(on_excess: str) -> None:
    log = make_log(1)
    log.extend([Piece(token_ids=tuple(range(50)), source="tool")], turn=1)
    episodes = [make_episode("a", "g", 1.0, log=log), make_episode("b", "g", 0.0)]
    limit = RowLimit(max_tokens=5, on_excess=on_excess)
    batch = build_batch(episodes, estimator=dr_grpo, row_limit=limit, temperature=1.0)
    assert [len(s) for s in batch.samples] == [55, 5]
    assert batch.metrics["rows_oversized"] == 0


def test_a_limit_under_which_nothing_can_be_predicted_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs two"):
        cut_at(1)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6), st.integers(2, 60))
def test_cutting_keeps_a_prefix_of_everything(turns: list[tuple[int, int]], size: int) -> None:
    log = TokenLog()
    for turn, (prompted, sampled) in enumerate(turns):
        log.extend([Piece(token_ids=tuple(range(prompted)), source="user")], turn=turn)
        tokens = SampledTokens(
            token_ids=tuple(range(sampled)), logprobs=(-1.0,) * sampled, versions=((0, 0, sampled),)
        )
        log.append_sampled(tokens, turn=turn)
    (before,) = log.segments()
    trajectory = make_episode(log=log, num_turns=len(turns)).trajectories[0]
    (after,) = truncated(trajectory, cut_at(size)).segments
    assert len(after) == min(len(before), size)
    np.testing.assert_array_equal(after.token_ids, before.token_ids[:size])
    np.testing.assert_array_equal(after.loss_mask, before.loss_mask[:size])
    np.testing.assert_array_equal(after.logprobs, before.logprobs[:size])
    assert num_needed_tokens(after) <= size
    lost = cut_at(size).num_lost(before)
    assert int(before.loss_mask.sum()) == int(after.loss_mask.sum()) + lost
