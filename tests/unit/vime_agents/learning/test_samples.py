"""Episodes to a batch: who enters the baseline, who enters the loss, and what is only counted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.vime_agents.episodes import make_episode, make_log
from vime_agents.episode import Episode
from vime_agents.errors import RecordError
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.samples import build_batch
from vime_agents.token_log import Piece, SampledTokens
from vime_agents.trainer import Batch


def build(episodes: list[Episode], **kwargs: object) -> Batch:
    return build_batch(episodes, estimator=dr_grpo, temperature=1.0, **kwargs)  # type: ignore[arg-type]


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
    batch = build(group([1, 3, 2, None]))
    assert advantages(batch) == {"g-0": -1, "g-1": 1}
    assert batch.metrics["dropped/failed:engine"] == 1
    assert batch.metrics["reward_mean"] == 2


def test_uneven_groups_are_compared_by_id_whatever_the_order() -> None:
    episodes = [*group([1, 2, 3, 4], "a"), *group([5, 5, 5], "b"), *group([0, 0, 1, 1], "c")]
    order = np.random.default_rng(0).permutation(len(episodes))
    batch = build([episodes[i] for i in order], keep_zero_advantage=True)
    expected = [-1.5, -0.5, 0.5, 1.5, 0, 0, 0, -0.5, -0.5, 0.5, 0.5]
    found = advantages(batch)
    assert [found[e.id] for e in episodes] == expected
    assert batch.metrics["groups_zero_advantage"] == 1


def test_rows_that_add_nothing_are_left_out_without_changing_the_weights() -> None:
    episodes = [*group([1, 0], "a"), *group([5, 5], "b")]
    kept = build(episodes, keep_zero_advantage=True)
    lean = build(episodes)
    assert (len(kept.samples), len(lean.samples)) == (4, 2)
    np.testing.assert_allclose(lean.samples[0].weights[2:], 1 / 12)
    np.testing.assert_array_equal(lean.samples[0].weights, kept.samples[0].weights)
    assert lean.metrics["tokens_trained"] == 6
    assert lean.metrics["tokens_sampled"] == 12


def test_an_episode_that_forked_counts_once_in_the_baseline() -> None:
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
    batch = build([*group([1, None, None], "a"), *group([None, None], "b")])
    assert batch.samples == ()
    assert batch.metrics["dropped/group:singleton"] == 1
    assert batch.metrics["dropped/failed:engine"] == 4
    assert batch.num_tokens == 0


def test_an_untrusted_reward_is_not_a_zero() -> None:
    untrusted = make_episode("u", "g", None)
    batch = build([make_episode("a", "g", 1.0), make_episode("b", "g", 0.0), untrusted])
    assert batch.metrics["reward_mean"] == 0.5
    assert batch.metrics["dropped/reward:error"] == 1


def test_the_same_episode_twice_is_refused() -> None:
    with pytest.raises(RecordError, match="'a' occurs 2 times"):
        build([make_episode("a"), make_episode("a")])
