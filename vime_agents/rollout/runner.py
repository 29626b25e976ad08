"""EpisodeRequests -> Episodes, as they finish. No step barrier, and no episode ever ends the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from vime_agents.env import AgentEnv
from vime_agents.episode import Episode, Outcome
from vime_agents.errors import ConfigError
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.policies.cast import Cast
from vime_agents.policies.pool import Player
from vime_agents.policy import Policy, Sampling
from vime_agents.rollout.attempt import Attempt
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.multi_agent import MultiAgentPlay
from vime_agents.rollout.play import EpisodePlay, EpisodeRequest, play_to_the_end
from vime_agents.sandbox import SandboxProvider
from vime_agents.wrappers import AgentWrapper

GenerateFunction = Callable[[Any], Awaitable[None]]
"""Plays one EpisodePlay, or the MultiAgentPlay of an env of several agents, to its end."""


@dataclass(slots=True)
class RunnerStats:
    """Counters of one runner, since it was made."""

    episodes: int = 0
    retries: int = 0
    failures: int = 0
    """Episodes that ended as failed after all their attempts."""
    max_loop_lag_s: float = 0.0
    """Longest time that the event loop was blocked: a hook or tool that should have been off the loop."""


class Runner:
    """Plays many episodes at once.

    Guarantees: each request yields exactly one Episode; at most `concurrency` are in flight; a failure of
    infrastructure is tried again `max_retries` times with a fresh env, sandbox and record; when the consumer
    stops or is cancelled, every episode in flight is cancelled and its env closed before `run` returns.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any] | MultiAgentEnv],
        policy: Policy | Mapping[str, Player] | Cast,
        *,
        env_id: str,
        sampling: Sampling | None = None,
        concurrency: int = 64,
        limits: Limits | None = None,
        max_retries: int = 2,
        retry_backoff_s: float = 0.5,
        seed_sampling: bool = True,
        generate: GenerateFunction = play_to_the_end,
        sandboxes: SandboxProvider | None = None,
        keep_graded: bool = False,
    ) -> None:
        """What does not explain itself.

        `policy`: who plays; in an env of several agents also by agent or role, as of a `Cast`.
        `sandboxes`: where all its envs take theirs from, and which stays open; None: each its own.
        `keep_graded`: episodes of one agent hold what their graders were given, see `Graded`.
        """
        self.make_env, self.policy, self.env_id = make_env, policy, env_id
        self.sampling, self.limits = sampling or Sampling(), limits or Limits()
        self.concurrency, self.max_retries = concurrency, max_retries
        self.retry_backoff_s, self.seed_sampling = retry_backoff_s, seed_sampling
        self.generate, self.sandboxes, self.keep_graded = generate, sandboxes, keep_graded
        self.stats = RunnerStats()
        self._in_flight: dict[str, tuple[Attempt, float]] = {}

    async def run(self, requests: Iterable[EpisodeRequest]) -> AsyncGenerator[Episode, None]:
        """Play every request; episodes come in the order in which they finish."""
        source = iter(requests)
        finished: asyncio.Queue[Episode | BaseException | None] = asyncio.Queue()

        async def work() -> None:
            try:
                for request in source:
                    finished.put_nowait(await self.play(request))
                finished.put_nowait(None)
            except Exception as error:  # noqa: BLE001 - handed to the consumer, which raises it
                finished.put_nowait(error)

        workers = [asyncio.create_task(work()) for _ in range(self.concurrency)]
        monitor = asyncio.create_task(self._watch_loop())
        running = len(workers)
        try:
            while running:
                item = await finished.get()
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            for task in (*workers, monitor):
                task.cancel()
            await asyncio.gather(*workers, monitor, return_exceptions=True)

    async def play(self, request: EpisodeRequest) -> Episode:
        """Play one request, with retries; the record of the last attempt."""
        attempt = 0
        episode, retryable = await self._attempt(request, attempt)
        while retryable and attempt < self.max_retries:
            self.stats.retries += 1
            await asyncio.sleep(self.retry_backoff_s * 2**attempt)
            attempt += 1
            episode, retryable = await self._attempt(request, attempt)
        self.stats.episodes += 1
        self.stats.failures += episode.outcome.kind == "failed"
        return episode

    def stuck(self, older_than_s: float) -> list[str]:
        """Episodes in flight for longer, each with what it awaits."""
        now = time.monotonic()
        return [
            f"{name}: {play.awaiting} for {now - since:.0f} s"
            for name, (play, since) in self._in_flight.items()
            if now - since > older_than_s
        ]

    async def _attempt(self, request: EpisodeRequest, attempt: int) -> tuple[Episode, bool]:
        try:
            env = self.make_env()
        except Exception as error:  # noqa: BLE001 - an author's constructor; recorded on the episode
            return _never_started(request, self.env_id, attempt, error), False
        if self.sandboxes is not None and isinstance(env, (AgentEnv, AgentWrapper)):
            env.use_sandboxes(self.sandboxes)
        if self.keep_graded and isinstance(env, gymnasium.Env) and isinstance(env.unwrapped, AgentEnv):
            env.unwrapped.keep_graded()
        play = self._play_of(request, env, attempt)
        self._in_flight[request.episode_id] = (play, time.monotonic())
        try:
            return await play.run(self.generate), play.retryable
        finally:
            del self._in_flight[request.episode_id]

    def _play_of(
        self, request: EpisodeRequest, env: gymnasium.Env[Any, Any] | MultiAgentEnv, attempt: int
    ) -> Attempt:
        options: dict[str, Any] = {
            "env_id": self.env_id,
            "sampling": self.sampling,
            "limits": self.limits,
            "attempt": attempt,
            "seed_sampling": self.seed_sampling,
        }
        if isinstance(env, MultiAgentEnv):
            return MultiAgentPlay(request, env, self.policy, **options)
        if isinstance(self.policy, (Mapping, Cast)):
            raise ConfigError(f"policies by agent, but {type(env).__name__} is an env of one agent")
        return EpisodePlay(request, env, self.policy, **options)

    async def _watch_loop(self, every_s: float = 0.25) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(every_s)
            lag = time.monotonic() - before - every_s
            self.stats.max_loop_lag_s = max(self.stats.max_loop_lag_s, lag)


def _never_started(request: EpisodeRequest, env_id: str, attempt: int, error: Exception) -> Episode:
    detail = f"the env could not be made: {error!r}"
    return Episode(
        id=request.episode_id,
        env_id=env_id,
        task_id=request.task.id,
        group_id=request.group_id,
        seed=request.seed,
        attempt=attempt,
        outcome=Outcome(kind="failed", stop="error", cause="env", detail=detail),
        started_at=time.time(),
        duration_s=0.0,
        trajectories=(),
    )
