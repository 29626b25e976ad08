"""Opponents that are not trained: in no baseline, in no loss, in nobody's way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.vime_agents.episodes import make_episode, make_log
from vime_agents.episode import Episode, RewardResult, Trajectory
from vime_agents.errors import RecordError
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.samples import build_batch
from vime_agents.trainer import Batch


def duel(episode_id: str, reward: float, opponent: Trajectory | None = None) -> Episode:
    """X is trained; O gets the opposite reward, without exact tokens."""
    episode = make_episode(episode_id, "g", reward)
    (trained,) = episode.trajectories
    other = opponent or Trajectory(
        agent="O", policy="random", turns=(), reward=RewardResult(value=-reward), frozen=True
    )
    return replace(episode, trajectories=(replace(trained, agent="X"), other))


def build(episodes: list[Episode]) -> Batch:
    return build_batch(episodes, estimator=dr_grpo, temperature=1.0)


def test_a_frozen_opponent_needs_no_tokens_and_moves_no_baseline() -> None:
    batch = build([duel("a", 1.0), duel("b", -1.0)])
    assert [(s.id, float(s.advantages[s.loss_mask][0])) for s in batch.samples] == [
        ("a/X/0", 1.0),
        ("b/X/0", -1.0),
    ]
    assert batch.metrics["reward_mean"] == 0.0


def test_tokens_of_a_frozen_opponent_are_in_no_count() -> None:
    def against_another_model(episode_id: str, reward: float) -> Episode:
        (other,) = make_episode(episode_id, "g", -reward, log=make_log(2), num_turns=2).trajectories
        return duel(episode_id, reward, replace(other, agent="O", frozen=True, num_forks=1))

    alone, batch = (build([of("a", 1.0), of("b", -1.0)]).metrics for of in (duel, against_another_model))
    assert batch == alone
    assert (batch["tokens_sampled"], batch["tokens_lost_to_drift"], batch["forks"]) == (6, 0, 0)


def test_agents_of_self_play_are_compared_with_their_own_kind() -> None:
    def both(episode_id: str, reward: float) -> Episode:
        (other,) = make_episode(episode_id, "g", reward - 5.0, log=make_log(2), num_turns=2).trajectories
        return duel(episode_id, reward, replace(other, agent="O"))

    batch = build([both("a", 1.0), both("b", 0.0)])
    assert {s.id: float(s.advantages[s.loss_mask][0]) for s in batch.samples} == {
        "a/X/0": 0.5,
        "b/X/0": -0.5,
        "a/O/0": 0.5,
        "b/O/0": -0.5,
    }


def test_an_episode_in_which_nobody_is_trained_is_a_mistake() -> None:
    episode = make_episode("a", "g", 1.0)
    frozen = replace(episode, trajectories=(replace(episode.trajectories[0], frozen=True),))
    with pytest.raises(RecordError, match="none of its agents is played by a trained policy"):
        build([frozen])


def test_an_agent_whose_turn_never_came_is_counted_and_ends_no_run() -> None:
    never = Trajectory(agent="O", policy="policy", turns=(), reward=RewardResult(value=1.0))
    batch = build([duel("a", 1.0, never), duel("b", -1.0, never)])
    assert {s.agent for s in batch.samples} == {"X"}
    assert batch.metrics["dropped/never_acted"] == 2
