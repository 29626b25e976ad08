"""One env, one policy, one episode: the loop that turns both into an Episode.

`EpisodePlay` is what a custom generate function gets: `await play.reset()`, `await play.act()`,
`await play.step(reply)`. It records everything; it decides nothing about retries.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import gymnasium

from vime_agents.env import AgentEnv, run_in_thread
from vime_agents.episode import Episode, Outcome, RewardResult, Trajectory, Turn
from vime_agents.errors import ContractError, EngineError, EnvError, EpisodeError, VimeAgentsError
from vime_agents.messages import Message
from vime_agents.policy import ContextLengthExceeded, Conversation, Generation, Policy, Sampling
from vime_agents.rollout.limits import Limits
from vime_agents.task import Task

T = TypeVar("T")

AGENT = "agent"
"""Name of the only agent of a single-agent env."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequest:
    """One episode to play."""

    task: Task
    group_id: str
    """Episodes with the same id are compared with each other."""
    episode_id: str
    seed: int
    """Seeds the env and, turn by turn, the sampling."""


class Truncate(Exception):
    """A limit fired: the episode ends, is scored on its partial state, and is not an error."""

    def __init__(self, stop: str, detail: str, *, scorable: bool = True) -> None:
        self.stop, self.detail, self.scorable = stop, detail, scorable
        super().__init__(stop, detail, scorable)


class EpisodePlay:
    """The state of one attempt at one episode."""

    def __init__(
        self,
        request: EpisodeRequest,
        env: gymnasium.Env[Any, Any],
        policy: Policy,
        *,
        env_id: str,
        sampling: Sampling,
        limits: Limits,
        attempt: int,
        seed_sampling: bool,
    ) -> None:
        self.request, self.env, self.policy = request, env, policy
        self.env_id, self.sampling, self.limits, self.attempt = env_id, sampling, limits, attempt
        self.seed_sampling = seed_sampling
        self.conversation = Conversation(agent=AGENT, episode_id=f"{request.episode_id}-a{attempt}")
        self.info: Mapping[str, Any] = {}
        self.done = False
        self.awaiting = "reset"
        """What the episode waits for, for reports on stuck ones."""
        self.retryable = False
        """Whether infrastructure failed, so that a fresh attempt may succeed."""
        self.close_failed = ""
        self._turns: list[Turn] = []
        self._new: tuple[Message, ...] = ()
        self._generation: Generation | None = None
        self._policy_s = 0.0
        self._return = 0.0
        self._outcome: Outcome | None = None
        self._reward: RewardResult | None = None
        self._started_at, self._clock = time.time(), time.monotonic()

    # ------------------------------------------------------------------- what a generate function uses

    async def reset(self) -> tuple[Message, ...]:
        """Start the env on the request's task; the first messages."""
        options = {"task": self.request.task}
        observation, self.info = await self._env_call(
            "reset", seed=self.request.seed & 0x7FFFFFFF, options=options
        )
        if isinstance(self.env, AgentEnv):
            self.conversation.tools = self.env.tool_schemas
        self._observed(observation)
        begin = getattr(self.policy, "begin", None)
        if begin is not None:
            begin(self.conversation, self.env)
        return self._new

    async def act(self) -> Message:
        """The policy's next reply."""
        self._check_budgets()
        sampling = self._turn_sampling()
        started = time.monotonic()
        limit_s = self.limits.generation_s
        try:
            self._generation = await self._bounded(
                self.policy.act(self.conversation, sampling=sampling, timeout_s=limit_s),
                limit_s,
                "generation",
            )
        except ContextLengthExceeded as full:
            raise Truncate("context_length", str(full)) from full
        if self._generation.finish_reason == "abort":
            raise EngineError("the engine aborted the generation")
        self._policy_s = time.monotonic() - started
        self.conversation.replied(self._generation.message)
        return self._generation.message

    async def step(self, reply: Message | None = None) -> bool:
        """Give the env the policy's reply (or another one); whether the episode is over."""
        generation = self._generation
        if generation is None:
            raise ContractError("step() before act()")
        action = generation.message if reply is None else reply
        started = time.monotonic()
        observation, reward, terminated, truncated, self.info = await self._env_call("step", action)
        self._return += float(reward)
        turn = Turn(
            index=len(self._turns),
            messages=self._new,
            reply=action,
            finish_reason=generation.finish_reason,
            num_prompt_tokens=generation.usage.prompt_tokens,
            num_sampled_tokens=generation.usage.sampled_tokens,
            policy_s=self._policy_s,
            env_s=time.monotonic() - started,
            reward=float(reward),
        )
        self._turns.append(turn)
        self._generation = None
        self._observed(observation)
        if terminated or truncated:
            self.done = True
            stop = self.info.get("stop", "done" if terminated else "max_turns")
            self._outcome = Outcome(kind="terminated" if terminated else "truncated", stop=stop)
            self._reward = self.info.get("reward_result") or _summed(self._return)
        return self.done

    # --------------------------------------------------------------------------- what the runner uses

    async def run(self, generate: Callable[[EpisodePlay], Awaitable[None]]) -> Episode:
        """Play to the end and return the record, whatever happens. Only cancellation escapes."""
        try:
            try:
                async with asyncio.timeout(self.limits.episode_s):
                    await self._generate_classified(generate)
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

    async def _generate_classified(self, generate: Callable[[EpisodePlay], Awaitable[None]]) -> None:
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
        if limits.max_turns is not None and len(self._turns) >= limits.max_turns:
            raise Truncate("max_turns", f"limit {limits.max_turns} turns")
        if limits.max_sampled_tokens is not None and self._num_sampled() >= limits.max_sampled_tokens:
            raise Truncate("max_tokens", f"limit {limits.max_sampled_tokens} sampled tokens")

    def _num_sampled(self) -> int:
        return sum(t.num_sampled_tokens or 0 for t in self._turns)

    def _turn_sampling(self) -> Sampling:
        base = self.sampling
        max_tokens = base.max_tokens
        if self.info.get("max_tokens") is not None:
            max_tokens = min(max_tokens, self.info["max_tokens"])
        if self.limits.max_sampled_tokens is not None:
            max_tokens = min(max_tokens, self.limits.max_sampled_tokens - self._num_sampled())
        seed = None
        if self.seed_sampling:
            seed = (self.request.seed * 1_000_003 + len(self._turns)) & 0x7FFFFFFF
        stop = (*base.stop, *self.info.get("stop_strings", ()))
        return replace(base, max_tokens=max_tokens, stop=stop, seed=seed)

    async def _env_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Reset or step: awaited where the env can, in a thread where it cannot."""
        face = getattr(self.env, f"a{name}", None) if isinstance(self.env, AgentEnv) else None
        if face is not None:
            call = face(*args, **kwargs)
        else:
            call = run_in_thread(lambda: getattr(self.env, name)(*args, **kwargs))
        return await self._bounded(call, self.limits.env_s, "env")

    async def _bounded(self, awaitable: Coroutine[Any, Any, T], limit_s: float, stage: str) -> T:
        self.awaiting = stage
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                return await awaitable
        except TimeoutError:
            if deadline.expired() or stage == "generation":
                # The number of tokens bounds an honest generation, and an env's answer is its own: running
                # into these limits is infrastructure, so there is no reward.
                raise Truncate(f"timeout:{stage}", f"limit {limit_s:g} s", scorable=False) from None
            raise

    def _observed(self, observation: Any) -> None:
        if not isinstance(observation, Mapping) or "messages" not in observation:
            raise EnvError(f"the observation must be {{'messages': ...}}, got {observation!r:.200}")
        self._new = tuple(observation["messages"])
        self.conversation.observe(self._new)

    async def _truncate(self, limit: Truncate) -> None:
        """Score the partial state if the env can."""
        self._outcome = Outcome(kind="truncated", stop=limit.stop, detail=limit.detail)
        self._reward = RewardResult(value=None, status="timeout", detail=limit.detail)
        if not limit.scorable or not isinstance(self.env, AgentEnv) or not self._turns:
            return
        try:
            async with asyncio.timeout(self.limits.env_s):
                self._reward = await self.env.score_partial()
        except TimeoutError:
            return
        except EpisodeError as error:
            self._fail(error)

    def _fail(self, error: EpisodeError) -> None:
        self.retryable = error.retryable
        cause = error.failure_class
        detail = f"{type(error).__name__}: {error}"[:2000]
        self._outcome = Outcome(kind="failed", stop="error", cause=cause, detail=detail)
        self._reward = RewardResult(value=None, status="error", detail=detail)

    async def _close(self) -> None:
        """Free the env; bounded, and completed even while we are cancelled."""
        closing = self.env.aclose() if isinstance(self.env, AgentEnv) else run_in_thread(self.env.close)
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
        outcome, reward = self._outcome, self._reward
        assert outcome is not None
        assert reward is not None
        counters = dict(getattr(self.env, "counters", {}))
        counters["close_failures"] = float(bool(self.close_failed))
        return Episode(
            id=self.request.episode_id,
            env_id=self.env_id,
            task_id=self.request.task.id,
            group_id=self.request.group_id,
            seed=self.request.seed,
            attempt=self.attempt,
            outcome=outcome,
            started_at=self._started_at,
            duration_s=time.monotonic() - self._clock,
            metrics=counters,
            trajectories=(self._trajectory(reward),),
        )

    def _trajectory(self, reward: RewardResult) -> Trajectory:
        log = self.conversation.log
        turns = list(self._turns)
        if self._generation is not None:  # the env never answered: the reply still was sampled
            turns.append(self._unanswered_turn(self._generation))
        return Trajectory(
            agent=AGENT,
            policy=self.policy.name,
            turns=tuple(turns),
            segments=log.segments(),
            reward=reward,
            final_messages=self._new if self.done else (),
            num_forks=log.num_forks,
        )

    def _unanswered_turn(self, generation: Generation) -> Turn:
        return Turn(
            index=len(self._turns),
            messages=self._new,
            reply=generation.message,
            finish_reason=generation.finish_reason,
            num_prompt_tokens=generation.usage.prompt_tokens,
            num_sampled_tokens=generation.usage.sampled_tokens,
            policy_s=self._policy_s,
            env_s=0.0,
        )


async def play_to_the_end(play: EpisodePlay) -> None:
    """The default generate function."""
    await play.reset()
    while not play.done:
        await play.act()
        await play.step()


def _summed(total: float) -> RewardResult:
    """The reward of an env that only gives step rewards."""
    return RewardResult(value=total, components={"return": total}, weights={"return": 1.0})
