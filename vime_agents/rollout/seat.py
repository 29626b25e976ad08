"""One agent's side of an attempt: its policy, its conversation, and the record of both."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from vime_agents.deadlines import Deadline
from vime_agents.episode import Outcome, RewardResult, Trajectory, Turn
from vime_agents.errors import ContractError, EngineError, EnvError
from vime_agents.messages import Message, copied
from vime_agents.policy import Conversation, Generation, Policy, Sampling
from vime_agents.rollout.limits import Limits

T = TypeVar("T")


class Bounded(Protocol):
    """Awaits something for so many seconds, in a named stage."""

    def __call__(self, awaitable: Coroutine[Any, Any, T], limit_s: float, stage: str, /) -> Awaitable[T]:
        """What it gives. Raises Truncate: the time is over."""
        ...


class Seat:
    """Asks the policy, one reply at a time, and turns what happened into a Trajectory."""

    def __init__(self, agent: str, policy: Policy, *, episode_id: str, of_episode: str = "") -> None:
        """What does not explain itself.

        `episode_id`: of this attempt and agent; also the key that an engine is chosen by.
        `of_episode`: the episode's own id.
        """
        self.agent, self.policy = agent, policy
        self.conversation = Conversation(agent=agent, episode_id=episode_id, of_episode=of_episode)
        self.turns: list[Turn] = []
        self.new: tuple[Message, ...] = ()
        """What the agent was told and has not answered."""
        self.generation: Generation | None = None
        """The reply that the env has not answered."""
        self._policy_s = 0.0

    @property
    def num_sampled(self) -> int:
        """Tokens sampled in the turns so far."""
        return sum(t.num_sampled_tokens or 0 for t in self.turns)

    def begin(self, env: Any) -> None:
        """Tell a policy that wants to know which env it plays in."""
        begin = getattr(self.policy, "begin", None)
        if begin is not None:
            begin(self.conversation, env)

    def observe(self, observation: Any) -> None:
        """Take what the env said. Raises EnvError: it is no observation of messages."""
        if not isinstance(observation, Mapping) or "messages" not in observation:
            raise EnvError(f"the observation must be {{'messages': ...}}, got {observation!r:.200}")
        self.new = tuple(map(copied, observation["messages"]))  # an env may use its own again
        self.conversation.observe(self.new)

    async def act(self, sampling: Sampling, limit_s: float, bounded: Bounded) -> Message:
        """The policy's next reply. Raises what the policy does, EngineError: the engine gave up."""
        async with Deadline(None) as clock:
            call = self.policy.act(self.conversation, sampling=sampling, timeout_s=limit_s)
            self.generation = generation = await bounded(call, limit_s, "generation")
        self._policy_s = clock.elapsed_s
        if generation.finish_reason == "abort":
            raise EngineError("the engine aborted the generation")
        self.conversation.replied(generation.message)
        return generation.message

    def answered(self, action: Message | None, reward: float, env_s: float) -> None:
        """The env answered the last reply, or `action` in its place, after `env_s` seconds."""
        if self.generation is None:
            raise ContractError("step() before act()")
        self.turns.append(self._turn(self.generation, action or self.generation.message, reward, env_s))
        self.generation = None

    def earned(self, reward: float) -> None:
        """What the agent got while it was others' turn counts to its last turn."""
        if reward and self.turns:
            self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)

    def trajectory(
        self,
        reward: RewardResult,
        *,
        done: bool,
        outcome: Outcome | None = None,
        frozen: bool = False,
        policy_of: str = "",
        peers: str = "",
    ) -> Trajectory:
        """The record; `done`: the env ended it, so that what it said last is final."""
        turns = list(self.turns)
        if self.generation is not None:  # the env never answered: the reply still was sampled
            turns.append(self._turn(self.generation, self.generation.message, 0.0, 0.0))
        log = self.conversation.log
        return Trajectory(
            agent=self.agent,
            policy=self.policy.name,
            turns=tuple(turns),
            segments=log.segments(),
            reward=reward,
            final_messages=self.new if done else (),
            num_forks=log.num_forks,
            outcome=outcome,
            frozen=frozen,
            policy_of=policy_of,
            peers=peers,
        )

    def _turn(self, generation: Generation, reply: Message, reward: float, env_s: float) -> Turn:
        return Turn(
            index=len(self.turns),
            messages=self.new,
            reply=reply,
            finish_reason=generation.finish_reason,
            num_prompt_tokens=generation.usage.prompt_tokens,
            num_sampled_tokens=generation.usage.sampled_tokens,
            policy_s=self._policy_s,
            env_s=env_s,
            reward=reward,
            from_cache=generation.from_cache,
        )


def turn_sampling(
    base: Sampling, info: Mapping[str, Any], limits: Limits, *, num_sampled: int, seed: int | None
) -> Sampling:
    """How to sample the coming turn: the run's way, within what the env and the limits allow.

    Args:
        base: the run's.
        info: the env's, with `max_tokens` and `stop_strings`.
        limits: of the episode.
        num_sampled: tokens sampled in the episode so far.
        seed: of this turn.
    """
    max_tokens = base.max_tokens
    if info.get("max_tokens") is not None:
        max_tokens = min(max_tokens, info["max_tokens"])
    if limits.max_sampled_tokens is not None:
        max_tokens = min(max_tokens, limits.max_sampled_tokens - num_sampled)
    stop: Sequence[str] = (*base.stop, *info.get("stop_strings", ()))
    return replace(base, max_tokens=max_tokens, stop=tuple(stop), seed=seed)
