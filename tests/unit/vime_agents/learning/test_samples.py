"""Episodes to a batch: who enters the baseline, who enters the loss, and what is only counted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.unit.vime_agents.episodes import make_episode, make_log, with_turn_rewards
from vime_agents.episode import Episode, Outcome
from vime_agents.errors import ConfigError, RecordError
from vime_agents.learning.advantages import Estimator, dr_grpo, grpo, no_baseline, opo, overlong_penalty
from vime_agents.learning.credit import Credit
from vime_agents.learning.samples import OVERLONG_STOPS, build_batch, build_batches
from vime_agents.token_log import Piece, SampledTokens
from vime_agents.trainer import Batch


def build(episodes: list[Episode], estimator: Estimator = dr_grpo, **kwargs: object) -> Batch:
    return build_batch(episodes, estimator=estimator, temperature=1.0, **kwargs)  # type: ignore[arg-type]


def advantages(batch: Batch) -> dict[str, float]:
    return {s.episode_id: float(s.advantages[s.loss_mask][0]) for s in batch.samples}


def group(rewards: list[float | None], group_id: str = "g", cause: str = "engine") -> list[Episode]:
    return [
        make_episode(f"{group_id}-{i}", group_id, r, cause=cause if r is None else None)
        for i, r in enumerate(rewards)
    ]


def test_a_sample_carries_ids_mask_log_probs_and_versions_of_its_segment() -> None:
    good = make_episode("a", "g", 1.0, log=make_log(2, version=5), num_turns=2)
    batch = build([good, make_episode("b", "g", 0.0)])
    sample = next(s for s in batch.samples if s.episode_id == "a")
    assert sample.id == "a/agent/0"
    assert sample.token_ids.tolist() == [10, 11, 20, 21, 22, 11, 11, 20, 21, 22]
    assert sample.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    assert sample.advantages.tolist() == [0, 0, 0.5, 0.5, 0.5, 0, 0, 0.5, 0.5, 0.5]
    assert sample.weight_versions.tolist() == [-1, -1, 5, 5, 5, -1, -1, 5, 5, 5]
    np.testing.assert_array_equal(sample.rollout_logprobs[2:5], np.float32([-0.5, -1.0, -0.25]))
    # 9 trainable tokens in all, each 1 / 9
    np.testing.assert_allclose(sample.weights[sample.loss_mask], 1 / 9)
    assert batch.num_trainable == 9


def test_a_failed_episode_enters_neither_baseline_nor_loss() -> None:
    """Plan 7."""
    batch = build(group([1, 3, 2, None]))
    assert advantages(batch) == {"g-0": -1, "g-1": 1}
    assert batch.metrics["dropped/failed:engine"] == 1
    assert batch.metrics["reward_mean"] == 2


def test_uneven_groups_are_compared_by_id_whatever_the_order() -> None:
    """Plan 5."""
    episodes = [*group([1, 2, 3, 4], "a"), *group([5, 5, 5], "b"), *group([0, 0, 1, 1], "c")]
    order = np.random.default_rng(0).permutation(len(episodes))
    batch = build([episodes[i] for i in order], keep_zero_advantage=True)
    expected = [-1.5, -0.5, 0.5, 1.5, 0, 0, 0, -0.5, -0.5, 0.5, 0.5]
    found = advantages(batch)
    assert [found[e.id] for e in episodes] == expected
    assert batch.metrics["groups_zero_advantage"] == 1


def test_rows_that_add_nothing_are_left_out_without_changing_the_weights() -> None:
    """Plan 48."""
    episodes = [*group([1, 0], "a"), *group([5, 5], "b")]
    kept = build(episodes, keep_zero_advantage=True)
    lean = build(episodes)
    assert (len(kept.samples), len(lean.samples)) == (4, 2)
    np.testing.assert_allclose(lean.samples[0].weights[2:], 1 / 12)
    np.testing.assert_array_equal(lean.samples[0].weights, kept.samples[0].weights)
    assert lean.metrics["tokens_trained"] == 6
    assert lean.metrics["tokens_sampled"] == 12


def test_an_episode_that_forked_counts_once_in_the_baseline() -> None:
    """Plan 6."""
    log = make_log()
    for turn in (1, 2):
        log.fork([Piece(token_ids=(30, 31), source="user")], turn=turn)
        tokens = SampledTokens(token_ids=(40,), logprobs=(-0.5,), versions=((0, 0, 1),))
        log.append_sampled(tokens, turn=turn)
    batch = build([make_episode("a", "g", 1.0, log=log, num_turns=3), make_episode("b", "g", 0.0)])
    assert [s.id for s in batch.samples] == ["a/agent/0", "a/agent/1", "a/agent/2", "b/agent/0"]
    assert [float(s.advantages.max()) for s in batch.samples[:3]] == [0.5] * 3
    assert (batch.metrics["forks"], batch.metrics["tokens_lost_to_drift"]) == (2, 0)


def test_a_group_with_one_survivor_teaches_nothing_and_is_counted() -> None:
    """Plan 7."""
    batch = build([*group([1, None, None], "a"), *group([None, None], "b")])
    assert batch.samples == ()
    assert batch.metrics["dropped/group:singleton"] == 1
    assert batch.metrics["dropped/failed:engine"] == 4
    assert batch.num_tokens == 0


def test_an_untrusted_reward_is_not_a_zero() -> None:
    """Plan 65."""
    untrusted = make_episode("u", "g", None)
    batch = build([make_episode("a", "g", 1.0), make_episode("b", "g", 0.0), untrusted])
    assert batch.metrics["reward_mean"] == 0.5
    assert batch.metrics["dropped/reward:error"] == 1


def test_the_same_episode_twice_is_refused() -> None:
    with pytest.raises(RecordError, match="'a' occurs 2 times"):
        build([make_episode("a"), make_episode("a")])


def by_turn(batch: Batch, episode_id: str) -> list[float]:
    """The advantages of the trainable tokens, three to a turn."""
    sample = next(s for s in batch.samples if s.episode_id == episode_id)
    values = sample.advantages[sample.loss_mask].reshape(-1, 3)
    assert (values == values[:, :1]).all()
    return values[:, 0].tolist()


def two_turn_group() -> list[Episode]:
    """Rewards 3 = 2 + 0 + 1 at the end beyond the turns' own, and 1 = 0 + 1."""
    return [
        with_turn_rewards(make_episode("a", "g", 3.0, num_turns=2), 2.0, 0.0),
        with_turn_rewards(make_episode("b", "g", 1.0, num_turns=2), 0.0, 1.0),
    ]


def test_a_token_answers_only_for_rewards_from_its_turn_on() -> None:
    batch = build(two_turn_group(), credit=Credit(use_turn_rewards=True))
    # Returns 3 and 1 from the first turn on, 1 and 1 from the second.
    assert by_turn(batch, "a") == [1.0, 0.0]
    assert by_turn(batch, "b") == [-1.0, 0.0]


def test_every_turn_is_scaled_as_its_own_group() -> None:
    episodes = [
        with_turn_rewards(make_episode("a", "g", 2.0, num_turns=2), 2.0, 0.0),
        with_turn_rewards(make_episode("b", "g", 6.0, num_turns=2), 2.0, 4.0),
    ]
    batch = build(episodes, estimator=grpo, credit=Credit(use_turn_rewards=True))
    # Both turns: returns 4 apart, so 2 from the mean at a deviation of 2 sqrt(2).
    np.testing.assert_allclose(by_turn(batch, "b"), [2 / (8**0.5 + 1e-6)] * 2, rtol=1e-6)


def test_later_turns_are_discounted_by_the_turn() -> None:
    batch = build(two_turn_group(), credit=Credit(use_turn_rewards=True, turn_gamma=0.5))
    # 2 + 0.5 and 0 + 0.5 from the first turn on
    assert by_turn(batch, "a") == [1.0, 0.0]
    late = [
        with_turn_rewards(make_episode("a", "g", 4.0, num_turns=2), 0.0, 4.0),
        with_turn_rewards(make_episode("b", "g", 0.0, num_turns=2), 0.0, 0.0),
    ]
    assert by_turn(build(late, credit=Credit(use_turn_rewards=True, turn_gamma=0.5)), "a") == [1.0, 2.0]


def test_a_turn_that_one_episode_alone_reached_is_compared_with_nobody() -> None:
    episodes = [make_episode("a", "g", 1.0, num_turns=3), make_episode("b", "g", 0.0, num_turns=2)]
    batch = build(episodes, credit=Credit(use_turn_rewards=True))
    assert by_turn(batch, "a") == [0.5, 0.5, 0.0]
    assert by_turn(batch, "b") == [-0.5, -0.5]


def test_an_estimator_of_the_users_own_is_not_asked_about_one_episode_alone() -> None:
    episodes = [make_episode("a", "g", 1.0, num_turns=3), make_episode("b", "g", 0.0, num_turns=2)]
    batch = build(episodes, estimator=lambda r: np.array(r) + 1.0, credit=Credit(use_turn_rewards=True))
    assert by_turn(batch, "a") == [2.0, 2.0, 0.0]
    assert by_turn(batch, "b") == [1.0, 1.0]


def test_equal_rewards_of_episodes_of_different_lengths_teach_nothing() -> None:
    episodes = [make_episode("a", "g", 1.0, num_turns=3), make_episode("b", "g", 1.0, num_turns=2)]
    batch = build(episodes, credit=Credit(use_turn_rewards=True))
    assert batch.samples == ()
    assert batch.metrics["groups_zero_advantage"] == 1


def test_turn_rewards_without_a_baseline_are_returns() -> None:
    (first, _) = two_turn_group()
    credit = Credit(use_turn_rewards=True, gamma=0.5, turn_gamma=0.5)
    batch = build([first], estimator=no_baseline, credit=credit)
    # 1 at the end; halved for every token, once more between the turns; 2 at the end of the first turn.
    expected = np.array([0.25 * (2 + 0.25 * 0.25), 0.5 * (2 + 0.25 * 0.25), 2 + 0.25 * 0.25, 0.25, 0.5, 1])
    (sample,) = batch.samples
    np.testing.assert_allclose(sample.advantages[sample.loss_mask], expected)
    plain = build([first], estimator=no_baseline, credit=Credit(use_turn_rewards=True))
    assert by_turn(plain, "a") == [3.0, 1.0]


def test_a_group_is_kept_whole_however_few_of_it_succeed() -> None:
    """Plan 17."""
    batch = build(group([1, 0, 0, 0]))
    assert advantages(batch) == {"g-0": 0.75, "g-1": -0.25, "g-2": -0.25, "g-3": -0.25}


def test_reinforce_plus_plus_discounts_over_what_a_tool_wrote_without_a_break() -> None:
    """Plan 10: Two turns of three tokens around a tool's two: the return is not reset at them."""
    batch = build([make_episode("a", "g", 1.0, num_turns=2)], estimator=no_baseline, credit=Credit(gamma=0.9))
    (sample,) = batch.samples
    np.testing.assert_allclose(sample.advantages[sample.loss_mask], 0.9 ** np.arange(5, -1, -1.0), rtol=1e-6)
    assert not sample.advantages[~sample.loss_mask].any()


def test_returns_run_through_the_segments_of_a_forked_episode() -> None:
    log = make_log()
    log.fork([Piece(token_ids=(30, 31), source="user")], turn=1)
    log.append_sampled(SampledTokens(token_ids=(40,), logprobs=(-0.5,), versions=((0, 0, 1),)), turn=1)
    forked = make_episode("a", "g", 1.0, log=log, num_turns=2)
    batch = build([forked], estimator=no_baseline, credit=Credit(gamma=0.5))
    found = [s.advantages[s.loss_mask].tolist() for s in batch.samples]
    assert found == [[0.125, 0.25, 0.5], [1.0]]


def test_without_a_baseline_a_single_episode_is_trained_on_and_whitening_is_over_all_groups() -> None:
    episodes = [*group([1], "a"), *group([0], "b"), *group([0.5], "c")]
    found = advantages(build(episodes, estimator=no_baseline, whitened=True))
    values = np.repeat([1.0, 0.0, 0.5], 3)
    expected = (np.array([1.0, 0.0, 0.5]) - 0.5) / np.sqrt(values.var(ddof=1) + 1e-8)
    assert found == {
        "a-0": pytest.approx(expected[0], rel=1e-6),
        "b-0": pytest.approx(expected[1], rel=1e-6),
        # c-0 is average: it has no row
    }


def cut(episode: Episode, stop: str) -> Episode:
    return replace(episode, outcome=Outcome(kind="truncated", stop=stop, detail="8"))


@pytest.mark.parametrize("stop", OVERLONG_STOPS)
def test_the_overlong_filter_is_in_numerator_and_denominator_and_not_in_the_baseline(stop: str) -> None:
    """Plan 65."""
    episodes = group([1, 0, 0, 3])
    episodes[3] = cut(episodes[3], stop)
    batch = build(episodes, overlong_filter=True, keep_zero_advantage=True)
    assert advantages(batch) == {"g-0": 0, "g-1": -1, "g-2": -1}
    np.testing.assert_allclose(batch.samples[0].weights[2:], 1 / 9)
    assert batch.metrics["dropped/overlong"] == 1
    assert len(build(episodes, keep_zero_advantage=True).samples) == 4


def test_a_length_penalty_is_learned_from_and_not_reported() -> None:
    """Plan 14. Three and six sampled tokens of at most eight, the last four of which cost up to 1."""
    penalty = partial(overlong_penalty, max_length=8, buffer=4)
    episodes = [
        make_episode("a", "g", 1.0, log=make_log(1), num_turns=1),
        make_episode("b", "g", 1.0, log=make_log(2), num_turns=2),
    ]
    batch = build(episodes, length_penalty=penalty)
    assert advantages(batch) == {"a": 0.25, "b": -0.25}
    assert (batch.metrics["reward_mean"], batch.metrics["length_penalty"]) == (1.0, -0.25)
    assert episodes[1].trajectories[0].reward.value == 1.0
    assert "length_penalty" not in build(episodes).metrics


def test_a_time_out_is_no_way_out_of_the_loss() -> None:
    """Plan 65."""
    episodes = group([1, 0])
    episodes[1] = cut(episodes[1], "timeout:episode")
    assert advantages(build(episodes, overlong_filter=True)) == {"g-0": 0.5, "g-1": -0.5}


def test_prompt_mean_and_a_constant_norm_reach_the_weights() -> None:
    episodes = [*group([1, 0], "a"), *group([1, 0, 0, 0], "b")]
    by_prompt = build(episodes, aggregation="prompt-mean")
    shares = {s.id: float(s.weights.sum()) for s in by_prompt.samples}
    assert shares["a-0/agent/0"] == pytest.approx(0.25)
    assert shares["b-0/agent/0"] == pytest.approx(0.125)
    constant = build(episodes, aggregation="seq-mean-token-sum-norm", norm_length=100)
    assert float(constant.samples[0].weights.max()) == pytest.approx(1 / 600)


def test_an_estimator_that_returns_no_advantages_is_refused_with_what_it_returned() -> None:
    with pytest.raises(ConfigError, match=r"nan.*one finite number"):
        build(group([1, 0]), estimator=lambda r: np.full(len(r), np.nan))
    with pytest.raises(ConfigError, match=r"rewards \[1, 0\]"):
        build(group([1, 0]), estimator=lambda r: np.zeros(3))


def test_steps_hold_whole_groups_and_take_their_weights_over_themselves() -> None:
    episodes = [e for name in "abc" for e in group([1.0, 0.0], name)]
    one, two = build_batches(episodes, num_steps=2, estimator=dr_grpo, temperature=1.0)
    assert {s.group_id for s in one.samples} == {"a", "b"}
    assert {s.group_id for s in two.samples} == {"c"}
    # Token-mean: every step's weights add up to 1, whatever its size.
    for batch in (one, two):
        assert sum(float(s.weights.sum()) for s in batch.samples) == pytest.approx(1.0)
    whole = build(episodes)
    assert advantages(one) | advantages(two) == advantages(whole)
    assert one.metrics == two.metrics == whole.metrics


def test_whitening_is_over_the_rollout_and_not_over_a_step() -> None:
    episodes = group([4.0, 0.0], "a") + group([1.0, 0.0], "b")
    steps = build_batches(episodes, num_steps=2, estimator=dr_grpo, whitened=True, temperature=1.0)
    whole = build(episodes, whitened=True)
    assert advantages(steps[0]) | advantages(steps[1]) == advantages(whole)


def test_a_step_that_no_group_is_left_for_is_empty() -> None:
    episodes = group([1.0, 0.0], "a") + group([None, None], "b")
    one, two = build_batches(episodes, num_steps=2, estimator=dr_grpo, temperature=1.0)
    assert (len(one.samples), len(two.samples)) == (2, 0)


def test_the_batchs_deviation_is_over_the_rewards_of_all_groups() -> None:
    episodes = [*group([1, 0], "a"), *group([4, 2], "b")]
    found = advantages(build(episodes, batch_scaled=True))
    scale = np.std([1, 0, 4, 2], ddof=1) + 1e-6
    assert found == pytest.approx(
        {"a-0": 0.5 / scale, "a-1": -0.5 / scale, "b-0": 1 / scale, "b-1": -1 / scale}
    )


def test_opo_reads_the_trainable_tokens_of_each_episode() -> None:
    long = make_episode("a", "g", 1.0, log=make_log(3), num_turns=3)
    found = advantages(build([long, make_episode("b", "g", 0.0)], estimator=opo))
    assert found == pytest.approx({"a": 1 - 9 / 12, "b": -9 / 12})


def test_sizes_of_groups_and_rows_of_episodes_are_counted() -> None:
    metrics = build([*group([1.0, 0.0, None], "a"), *group([1.0, 1.0], "b"), *group([1.0], "c")]).metrics
    assert {k: v for k, v in metrics.items() if k.startswith("group_size/")} == {"group_size/2": 2.0}
    assert (metrics["zero_advantage_share"], metrics["rows_per_episode"]) == (0.5, 1.0)
