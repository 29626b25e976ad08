"""One stored episode -> the same episode, with the reward that its env's graders give it now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vime_agents.env import AgentEnv
from vime_agents.episode import Episode, Outcome, RewardResult, Turn
from vime_agents.errors import ConfigError, EpisodeError, GraderError
from vime_agents.evaluation.paired import SAME
from vime_agents.evaluation.stand_in import Refused, Regraded, regrade
from vime_agents.sandbox import SandboxProvider
from vime_agents.task import Task
from vime_agents.wrappers import AgentWrapper

SingleAgentEnv = AgentEnv | AgentWrapper
Result = tuple[Episode, Episode, str]
"""(what was, what is now, why it is the same; empty: it was scored again)."""

_GRADING_FAILED = ("grader", "judge", "sandbox")
"""Failure classes of episodes that graders may make whole."""


@dataclass(frozen=True, slots=True)
class Regrader:
    """Scores episodes again."""

    make_env: Callable[[], SingleAgentEnv]
    env_id: str
    tasks: Mapping[str, Task]
    keep: frozenset[str]
    timeout_s: float
    sandboxes: SandboxProvider | None

    async def __call__(self, episode: Episode) -> Result:
        """Raises Refused, ConfigError."""
        if why := _why_left(episode, self.keep):
            return episode, replace(episode, env_id=self.env_id), why
        (trajectory,), graded = episode.trajectories, episode.graded
        if graded is None:
            raise ConfigError(
                f"episode {episode.id} does not hold what its graders were given: an older release wrote it. "
                "Evaluate again"
            )
        if episode.task_id not in self.tasks:
            raise ConfigError(f"episode {episode.id} is of task {episode.task_id!r}, which is not stored")
        outcome, metrics = episode.outcome, dict(episode.metrics)
        if outcome.kind == "failed":
            outcome = Outcome(kind="terminated" if graded.terminated else "truncated", stop=graded.stop)
        try:
            found = await self._reward(episode)
        except EpisodeError as error:
            detail = f"{type(error).__name__}: {error}"[:2000]
            outcome = Outcome(kind="failed", stop="error", cause=error.failure_class, detail=detail)
            reward = RewardResult(value=None, status="error", detail=detail)
        else:
            reward = found.reward
            metrics |= {n: v for n, v in found.counters.items() if v != graded.counters.get(n)}
        turns = _turns(trajectory.turns, trajectory.reward.value, reward.value)
        now = replace(
            episode,
            env_id=self.env_id,
            outcome=outcome,
            metrics=metrics,
            trajectories=(replace(trajectory, reward=reward, turns=turns),),
        )
        return episode, now, ""

    async def _reward(self, episode: Episode) -> Regraded:
        """Tried again, as in play, where infrastructure fails."""
        for attempts_left in (2, 1, 0):
            try:
                return await self._try(episode)
            except EpisodeError as error:
                if not error.retryable or not attempts_left:
                    raise
        raise AssertionError("unreachable")

    async def _try(self, episode: Episode) -> Regraded:
        (trajectory,), graded = episode.trajectories, episode.graded
        assert graded is not None
        try:
            made = self.make_env()
        except Exception as error:
            raise GraderError(f"the env could not be made: {error!r}") from error
        env: Any = made.unwrapped
        if self.sandboxes is not None:
            env.use_sandboxes(self.sandboxes)
        keep = {n: v for n, v in trajectory.reward.components.items() if n in self.keep}
        deadline = asyncio.timeout(self.timeout_s)
        try:
            async with deadline:
                return await regrade(env, self.tasks[episode.task_id], trajectory, graded, keep)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise GraderError(f"no reward within {self.timeout_s:g} s") from error
        except Refused as error:
            raise Refused(
                {n: f"{what}, of episode {episode.id}" for n, what in error.needs.items()}
            ) from None
        finally:
            await env.aclose()


def _why_left(episode: Episode, keep: Collection[str]) -> str:
    """Why an episode stays as it is; empty: it can be scored again."""
    graded, outcome = episode.graded, episode.outcome
    reward = episode.trajectories[0].reward if episode.trajectories else None
    if graded is None and (reward is None or reward.status in ("error", "timeout")):
        return "ended before they could be graded"
    if outcome.kind == "failed" and outcome.cause not in _GRADING_FAILED:
        return "failed, and not in their grading"
    if outcome.kind == "failed" and graded is not None and not graded.stop:
        return "cut by a wrapper, which is not stored with an episode that failed"
    if reward is not None and not set(keep) <= reward.components.keys():
        return "without a stored value of what is to be kept"
    return ""


def _turns(turns: tuple[Turn, ...], old: float | None, new: float | None) -> tuple[Turn, ...]:
    """Where the turns' rewards sum to the episode's, they still do: the last one takes what changed."""
    total = math.fsum(turn.reward for turn in turns)
    if not turns or old is None or new is None or abs(total - old) > SAME:
        return turns
    return (*turns[:-1], replace(turns[-1], reward=turns[-1].reward + new - old))
