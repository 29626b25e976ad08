"""One env, one policy, one episode: the loop that turns both into an Episode.

`EpisodePlay` is what a custom generate function gets: `await play.reset()`, `await play.act()`,
`await play.step(reply)`. It records everything; it decides nothing about retries.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gymnasium

from vime_agents.env import AgentEnv
from vime_agents.episode import Outcome, RewardResult, RewardStatus, Trajectory, messages_of
from vime_agents.errors import ContractError
from vime_agents.graded import Graded
from vime_agents.messages import Message
from vime_agents.policy import ContextLengthExceeded, Conversation, Policy
from vime_agents.rollout.attempt import Attempt, EpisodeRequest, Truncate
from vime_agents.rollout.seat import Seat
from vime_agents.wrappers.base import AgentWrapper, wrapped_attribute

__all__ = ["AGENT", "EpisodePlay", "EpisodeRequest", "Truncate", "play_to_the_end"]

AGENT = "agent"
"""Name of the only agent of a single-agent env."""


class EpisodePlay(Attempt):
    """The state of one attempt at one episode of one agent."""

    def __init__(
        self, request: EpisodeRequest, env: gymnasium.Env[Any, Any], policy: Policy, **kwargs: Any
    ) -> None:
        """`kwargs`: as `Attempt` takes them."""
        super().__init__(request, env, **kwargs)
        self.policy = policy
        self.info: Mapping[str, Any] = {}
        attempt_id = f"{request.episode_id}-a{self.attempt}"
        self._seat = Seat(AGENT, policy, episode_id=attempt_id, of_episode=request.episode_id)
        self._return = 0.0
        self._reward: RewardResult | None = None

    @property
    def conversation(self) -> Conversation:
        """What the agent saw and said."""
        return self._seat.conversation

    # ------------------------------------------------------------------- what a generate function uses

    async def reset(self) -> tuple[Message, ...]:
        """Start the env on the request's task; the first messages."""
        options = {"task": self.request.task}
        observation, self.info = await self._env_call(
            "reset", seed=self.request.seed & 0x7FFFFFFF, options=options
        )
        self.conversation.tools = wrapped_attribute(self.env, "tool_schemas", ())
        self._seat.observe(observation)
        self._seat.begin(self.env)
        return self._seat.new

    async def act(self) -> Message:
        """The policy's next reply."""
        self._check_budgets()
        sampling = self._turn_sampling(self.info)
        try:
            return await self._seat.act(sampling, self.limits.generation_s, self._bounded)
        except ContextLengthExceeded as full:
            raise Truncate("context_length", str(full)) from full

    async def step(self, reply: Message | None = None) -> bool:
        """Give the env the policy's reply (or another one); whether the episode is over."""
        generation = self._seat.generation
        if generation is None:
            raise ContractError("step() before act()")
        action = generation.message if reply is None else reply
        started = time.monotonic()
        observation, reward, terminated, truncated, self.info = await self._env_call("step", action)
        self._return += float(reward)
        self._seat.answered(action, float(reward), time.monotonic() - started)
        self._seat.observe(observation)
        if terminated or truncated:
            self.done = True
            stop = self.info.get("stop", "done" if terminated else "max_turns")
            self._outcome = Outcome(kind="terminated" if terminated else "truncated", stop=stop)
            self._reward = self.info.get("reward_result") or _summed(self._return)
        return self.done

    # ------------------------------------------------------------------------------ what an attempt asks

    @property
    def _num_turns(self) -> int:
        return len(self._seat.turns)

    @property
    def _num_sampled(self) -> int:
        return self._seat.num_sampled

    @property
    def _counters(self) -> Mapping[str, float]:
        return wrapped_attribute(self.env, "counters", {})

    async def _score_partial(self, limit: Truncate) -> None:
        if isinstance(self.env.unwrapped, AgentEnv):
            self._reward = await AgentWrapper(self.env).score_partial()

    def _unscored(self, status: RewardStatus, detail: str) -> None:
        self._reward = RewardResult(value=None, status=status, detail=detail)

    def _trajectories(self) -> tuple[Trajectory, ...]:
        assert self._reward is not None
        return (self._seat.trajectory(self._reward, done=self.done),)

    def _graded(self) -> Graded | None:
        env = self.env.unwrapped
        graded = env.graded_record if isinstance(env, AgentEnv) else None
        if graded is None:
            return None
        (trajectory,) = self._trajectories()
        as_told = graded.messages == messages_of(trajectory)
        return replace(
            graded,
            stop=graded.stop or (self._limit.stop if self._limit else ""),
            messages=None if as_told else graded.messages,
        )


async def play_to_the_end(play: Attempt) -> None:
    """The default generate function."""
    await play.reset()
    while not play.done:
        await play.act()
        await play.step()


def _summed(total: float) -> RewardResult:
    """The reward of an env that only gives step rewards."""
    return RewardResult(value=total, components={"return": total}, weights={"return": 1.0})
