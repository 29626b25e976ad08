"""Whatever a grader does, one episode has no reward, the others have theirs, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.vime_agents.grading import graders
from vime_agents.env import AgentEnv
from vime_agents.episode import Episode
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.task import Task


class Obedient(AgentEnv):
    obeys = graders.obeys

    def prompt(self) -> str:
        return "say it"

    def gold(self) -> str:
        return self.task["reply"]


@pytest.mark.integration  # waits for a grader that does not end
async def test_a_grader_costs_its_own_episode_the_reward_and_no_more(tmp_path: Path) -> None:
    replies = ["right", "loop", "fork", "wrong", "crash", "leave", "eat", "raise", "no key", "right"]
    requests = [
        EpisodeRequest(
            task=Task(id=str(n), inputs={"reply": reply, "path": str(tmp_path / "pids")}),
            group_id="g",
            episode_id=str(n),
            seed=n,
        )
        for n, reply in enumerate(replies)
    ]
    runner = Runner(Obedient, ScriptedPolicy("gold"), env_id="Obedient-v0")
    episodes: dict[int, Episode] = {int(e.id): e async for e in runner.run(requests)}
    found = [
        (
            episode.status,
            episode.reward,
            episode.trajectories[0].reward.status,
            episode.outcome.detail.partition(":")[0],
        )
        for _, episode in sorted(episodes.items())
    ]
    assert found == [
        ("ok", 1.0, "ok", ""),
        ("error:grader", None, "error", "GraderTimeout"),
        ("error:grader", None, "error", "GraderCrashed"),
        ("ok", 0.0, "ok", ""),
        ("error:grader", None, "error", "GraderCrashed"),
        ("error:grader", None, "error", "GraderCrashed"),
        ("error:grader", None, "error", "GraderOutOfMemory"),
        ("error:grader", None, "error", "GraderError"),
        ("ok", None, "unscorable", ""),
        ("ok", 1.0, "ok", ""),
    ]
    assert runner.stats.retries == 0
