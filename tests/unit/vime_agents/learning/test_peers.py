"""Who is compared with whom, when an env says that some agents of an episode are peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import Episode, RewardResult, episode_from_json, episode_to_json
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.samples import build_batch


def problem(name: str, proposer: float, solvers: list[float | None]) -> Episode:
    episode = make_episode(name, "g", proposer)
    (base,) = episode.trajectories
    trajectories = [replace(base, agent="proposer")]
    for i, reward in enumerate(solvers):
        result = RewardResult(value=reward, status="ok" if reward is not None else "unscorable")
        trajectories.append(replace(base, agent=f"solver_{i}", reward=result, peers="solver"))
    return replace(episode, trajectories=tuple(trajectories))


def test_solvers_are_compared_inside_their_problem_and_proposers_across_problems() -> None:
    """Plan 8."""
    episodes = [problem("hard", 0.75, [1, 0, 0, 0]), problem("easy", 0.25, [1, 1, 1, 0])]
    batch = build_batch(episodes, estimator=dr_grpo, temperature=1.0)
    found = {(s.episode_id, s.agent): float(s.advantages[s.loss_mask][0]) for s in batch.samples}
    assert found == pytest.approx(
        {
            ("hard", "proposer"): 0.25,
            ("hard", "solver_0"): 0.75,
            **{("hard", f"solver_{i}"): -0.25 for i in (1, 2, 3)},
            ("easy", "proposer"): -0.25,
            **{("easy", f"solver_{i}"): 0.25 for i in (0, 1, 2)},
            ("easy", "solver_3"): -0.75,
        }
    )


def test_a_solver_without_a_reward_is_in_nobodys_baseline_and_one_alone_teaches_nothing() -> None:
    episodes = [problem("a", 0.5, [1, 0, None]), problem("b", 0.0, [1, None, None])]
    batch = build_batch(episodes, estimator=dr_grpo, temperature=1.0)
    found = {(s.episode_id, s.agent): float(s.advantages[s.loss_mask][0]) for s in batch.samples}
    assert found == {
        ("a", "proposer"): 0.25,
        ("b", "proposer"): -0.25,
        ("a", "solver_0"): 0.5,
        ("a", "solver_1"): -0.5,
    }
    assert batch.metrics["dropped/reward:unscorable"] == 3
    assert batch.metrics["dropped/group:singleton"] == 1


def test_peers_are_part_of_the_record_and_an_older_record_has_none() -> None:
    episode = problem("a", 0.5, [1, 0])
    data = episode_to_json(episode)
    assert episode_from_json(data) == episode
    for trajectory in data["trajectories"]:
        del trajectory["peers"]
    assert {t.peers for t in episode_from_json(data).trajectories} == {""}
