"""Game + a policy for each agent -> GameTrace: everything that an episode returned. Never judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vime_agents.checking.author import AuthorCode
from vime_agents.checking.drive import Hung, Step, Trace, bounded
from vime_agents.episode import Outcome, RewardResult
from vime_agents.errors import ModelError
from vime_agents.messages import Message
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.multi_agent.seat_view import SeatView
from vime_agents.policy import ContextLengthExceeded, Conversation, Policy, Sampling
from vime_agents.threads import call_hook


@dataclass(slots=True, kw_only=True)
class GameTrace(Trace):
    """One episode of several agents: observations, rewards and infos are by agent."""

    counters: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    cut: bool = False
    """Whether the env's max_turns ended it."""
    indiscretions: list[str] = field(default_factory=list)
    """Who was shown which secret of whom, while the game went on."""

    @property
    def reward_results(self) -> dict[str, RewardResult]:
        """By agent: its reward, once it was out."""
        return {
            agent: told["reward_result"]
            for step in self.steps
            for agent, told in step.info.items()
            if "reward_result" in told
        }

    def messages(self) -> list[Message]:
        """All that the env said to anybody, in order."""
        return [m for shown in self.observations() if shown for o in shown.values() for m in o["messages"]]


async def play_game(
    env: MultiAgentEnv,
    policies: Mapping[str, Policy],
    *,
    seed: int,
    task: int | None,
    limit_s: float,
    author: AuthorCode,
    max_steps: int | None = None,
) -> GameTrace:
    """Play until the episode ends, an error comes up, or `max_steps` (None: the env's limit and one)."""
    trace = GameTrace()
    seats = {agent: Conversation(agent=agent, episode_id=f"check-{seed}-{agent}") for agent in policies}
    views = {agent: SeatView(env, agent) for agent in policies}  # policies refer to them weakly
    try:
        trace.failed_in = "reset"
        options = None if task is None else {"task": task}
        call = env.areset(seed=seed, options=options)
        trace.observation, trace.info = await bounded(call, "reset", limit_s, author)
        for agent, policy in policies.items():
            begin = getattr(policy, "begin", None)
            if begin is not None:
                begin(seats[agent], views[agent])
        await _show(env, seats, trace, trace.observation)
        while env.acting and len(trace.steps) < (max_steps or env.max_turns + 1):
            trace.failed_in = "policy"
            sampling = Sampling(seed=seed * 1_000 + len(trace.steps))
            replies = {
                agent: await bounded(
                    _reply(policies[agent], seats[agent], sampling), "the policy", limit_s, author
                )
                for agent in env.acting
            }
            trace.replies.append(replies)
            trace.failed_in = "step"
            observation, reward, _, _, info = await bounded(env.astep(replies), "step", limit_s, author)
            trace.steps.append(
                Step(
                    observation=observation,
                    reward=reward,
                    terminated=not env.acting,
                    truncated=False,
                    info=info,
                )
            )
            await _show(env, seats, trace, observation)
        trace.failed_in = ""
    except Exception as error:  # noqa: BLE001 - what an env raises is what the checks are about
        trace.error = error
        trace.where = error.where if isinstance(error, Hung) else author.line_of(error)
    trace.counters, trace.outcomes = dict(env.counters), dict(env.outcomes)
    trace.cut = env.outcome is not None and env.outcome.stop == "max_turns" and env.turn >= env.max_turns
    return trace


async def _reply(policy: Policy, seat: Conversation, sampling: Sampling) -> Message | Outcome:
    """As the runner asks: an Outcome where the policy has no reply to give."""
    try:
        generation = await policy.act(seat, sampling=sampling)
    except ContextLengthExceeded as full:
        return Outcome(kind="truncated", stop="context_length", detail=str(full))
    except ModelError as error:
        return Outcome(kind="failed", stop="error", cause="model", detail=str(error))
    seat.replied(generation.message)
    return generation.message


async def _show(
    env: MultiAgentEnv, seats: Mapping[str, Conversation], trace: GameTrace, observation: Mapping[str, Any]
) -> None:
    for agent, seen in observation.items():
        seats[agent].observe(seen["messages"])
    if not env.acting:
        return
    for owner in env.agents:
        for secret in await call_hook(env.secrets, owner):
            trace.indiscretions += [
                f"{agent} is shown {secret!r:.100}, a secret of {owner}'s"
                for agent, seen in observation.items()
                if agent != owner and any(secret in message["content"] for message in seen["messages"])
            ]
