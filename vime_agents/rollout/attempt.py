"""One attempt at one episode, whatever its env: deadlines, failures, closing, the record."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from vime_agents.deadlines import Deadline
from vime_agents.episode import Episode, Outcome, RewardStatus, Trajectory
from vime_agents.errors import EnvError, EpisodeError, VimeAgentsError
from vime_agents.graded import Graded
from vime_agents.policy import Sampling
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.seat import turn_sampling
from vime_agents.task import Task
from vime_agents.threads import run_in_thread

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequest:
    """One episode to play."""

    task: Task
    group_id: str
    """Episodes with the same id are compared with each other."""
    episode_id: str
    seed: int
    """Seeds the env and, turn by turn, the sampling."""
    lot: int | None = None
    """Decides whom a pool of opponents sends, and who sits where when seats rotate; None: the seed does.
    Episodes that a trainer compares with each other have the same."""


class Truncate(Exception):
    """A limit fired: the episode ends, is scored on its partial state, and is not an error."""

    def __init__(self, stop: str, detail: str, *, scorable: bool = True) -> None:
        self.stop, self.detail, self.scorable = stop, detail, scorable
        super().__init__(stop, detail, scorable)


class Attempt(ABC):
    """The state of one attempt at one episode. It records everything; it decides nothing about retries."""

    def __init__(
        self,
        request: EpisodeRequest,
        env: Any,
        *,
        env_id: str,
        sampling: Sampling,
        limits: Limits,
        attempt: int,
        seed_sampling: bool,
    ) -> None:
        self.request, self.env = request, env
        self.env_id, self.sampling, self.limits, self.attempt = env_id, sampling, limits, attempt
        self.seed_sampling = seed_sampling
        self.done = False
        self.awaiting = "reset"
        """What the episode waits for, for reports on stuck ones."""
        self.retryable = False
        """Whether infrastructure failed, so that a fresh attempt may succeed."""
        self.close_failed = ""
        self._limit: Truncate | None = None
        """That fired."""
        self._outcome: Outcome | None = None
        self._started_at, self._clock = time.time(), time.monotonic()

    # ------------------------------------------------------------------- what a generate function uses

    @abstractmethod
    async def reset(self) -> Any:
        """Start the env on the request's task; what it says first."""

    @abstractmethod
    async def act(self) -> Any:
        """The next reply, or replies."""

    @abstractmethod
    async def step(self) -> bool:
        """Give the env what was replied; whether the episode is over."""

    # ------------------------------------------------------------------------------ what a kind of env has

    @property
    @abstractmethod
    def _num_turns(self) -> int:
        """Turns that the env answered."""

    @property
    @abstractmethod
    def _num_sampled(self) -> int:
        """Tokens sampled in them."""

    @property
    def _counters(self) -> Mapping[str, float]:
        """What the env counted."""
        return getattr(self.env, "counters", {})

    @abstractmethod
    async def _score_partial(self, limit: Truncate) -> None:
        """Score the state at which a limit fired."""

    @abstractmethod
    def _unscored(self, status: RewardStatus, detail: str) -> None:
        """There is no trusted reward: `status` is error or timeout."""

    @abstractmethod
    def _trajectories(self) -> tuple[Trajectory, ...]:
        """One for each agent."""

    def _graded(self) -> Graded | None:
        """What the graders were given; None: it is not kept, or they were not asked."""
        return None

    # --------------------------------------------------------------------------- what the runner uses

    async def run(self, generate: Callable[[Self], Awaitable[None]]) -> Episode:
        """Play to the end and return the record, whatever happens. Only cancellation escapes."""
        try:
            try:
                async with Deadline(self.limits.episode_s):
                    await self._generate_classified(generate)
            except EpisodeError:
                raise  # some are time-outs, too: of a sandbox, not of the episode
            except TimeoutError:
                # A policy that dawdles is scored as it stands, or it learns to; a wedged env cannot be.
                detail = f"limit {self.limits.episode_s:g} s, awaiting {self.awaiting}"
                raise Truncate("timeout:episode", detail, scorable=self.awaiting != "env") from None
        except Truncate as limit:
            await self._truncate(limit)
        except EpisodeError as error:
            self._fail(error)
        finally:
            await self._close()
        return self._episode()

    async def _generate_classified(self, generate: Callable[[Self], Awaitable[None]]) -> None:
        """Whatever an env, a policy or a generate function raises becomes an EpisodeError."""
        try:
            await generate(self)
        except (Truncate, EpisodeError):
            raise
        except VimeAgentsError as error:
            raise EnvError(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            raise EnvError(f"while it awaited {self.awaiting}: {error!r}") from error
        if not self.done:
            raise EnvError("the generate function returned before the episode was over")

    def _check_budgets(self) -> None:
        limits = self.limits
        if limits.max_turns is not None and self._num_turns >= limits.max_turns:
            raise Truncate("max_turns", f"limit {limits.max_turns} turns")
        if limits.max_sampled_tokens is not None and self._num_sampled >= limits.max_sampled_tokens:
            raise Truncate("max_tokens", f"limit {limits.max_sampled_tokens} sampled tokens")

    def _turn_sampling(self, info: Any, offset: int = 0) -> Sampling:
        """`offset` tells apart the agents who act at the same time."""
        seed = None
        if self.seed_sampling:
            seed = (self.request.seed * 1_000_003 + self._num_turns + offset) & 0x7FFFFFFF
        return turn_sampling(self.sampling, info, self.limits, num_sampled=self._num_sampled, seed=seed)

    async def _env_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Reset or step: awaited where the env can, in a thread where it cannot."""
        face = getattr(self.env, f"a{name}", None)
        if face is not None:
            call = face(*args, **kwargs)
        else:
            call = run_in_thread(lambda: getattr(self.env, name)(*args, **kwargs))
        return await self._bounded(call, self.limits.env_s, "env")

    async def _bounded(self, awaitable: Coroutine[Any, Any, T], limit_s: float, stage: str) -> T:
        self.awaiting = stage
        deadline = Deadline(limit_s)
        try:
            async with deadline:
                return await awaitable
        except EpisodeError:
            raise
        except TimeoutError:
            if deadline.expired() or stage == "generation":
                # The number of tokens bounds an honest generation, and an env's answer is its own: running
                # into these limits is infrastructure, so there is no reward.
                raise Truncate(f"timeout:{stage}", f"limit {limit_s:g} s", scorable=False) from None
            raise

    async def _truncate(self, limit: Truncate) -> None:
        """Score the partial state if the env can."""
        self._limit = limit
        self._outcome = Outcome(kind="truncated", stop=limit.stop, detail=limit.detail)
        self._unscored("timeout", limit.detail)
        if not limit.scorable or not self._num_turns:
            return
        try:
            async with asyncio.timeout(self.limits.env_s):
                await self._score_partial(limit)
        except EpisodeError as error:
            self._fail(error)
        except TimeoutError:
            return

    def _fail(self, error: EpisodeError) -> None:
        self.retryable = error.retryable
        detail = f"{type(error).__name__}: {error}"[:2000]
        self._outcome = Outcome(kind="failed", stop="error", cause=error.failure_class, detail=detail)
        self._unscored("error", detail)

    async def _close(self) -> None:
        """Free the env; bounded, and completed even while we are cancelled."""
        close = getattr(self.env, "aclose", None)
        closing = close() if close is not None else run_in_thread(self.env.close)
        task = asyncio.ensure_future(asyncio.wait_for(closing, self.limits.close_s))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise
        except TimeoutError:
            self.close_failed = f"close took longer than {self.limits.close_s:g} s"
        except Exception as error:  # noqa: BLE001 - the episode's record must survive a broken close
            self.close_failed = repr(error)

    def _episode(self) -> Episode:
        assert self._outcome is not None
        counters = dict(self._counters)
        counters["close_failures"] = float(bool(self.close_failed))
        return Episode(
            id=self.request.episode_id,
            env_id=self.env_id,
            task_id=self.request.task.id,
            group_id=self.request.group_id,
            seed=self.request.seed,
            attempt=self.attempt,
            outcome=self._outcome,
            started_at=self._started_at,
            duration_s=time.monotonic() - self._clock,
            metrics=counters,
            trajectories=self._trajectories(),
            graded=self._graded(),
        )
