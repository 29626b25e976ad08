"""Wrappers that bound an episode: its turns, the agent's tokens, the length of what the env says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from vime_agents import registry
from vime_agents.env import Info, Observation
from vime_agents.errors import ConfigError
from vime_agents.messages import Message
from vime_agents.tools import cut_output
from vime_agents.wrappers.base import AgentWrapper, Step


class TurnLimit(AgentWrapper, RecordConstructorArgs):
    """Ends an episode after `max_turns` turns, and scores it as it stands (`stop`: max_turns).

    Gymnasium's TimeLimit ends it too, but asks nobody for a score.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, max_turns: int) -> None:
        """Raises ConfigError: less than one turn."""
        RecordConstructorArgs.__init__(self, max_turns=max_turns)
        AgentWrapper.__init__(self, env)
        self.max_turns = _positive("max_turns", max_turns)
        self._turn = 0

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """Count from the start."""
        self._turn = 0
        return observation, info

    def answer(self, step: Step) -> Step:
        """One turn more."""
        self._turn += 1
        if self._turn >= self.max_turns:
            step.cut = "max_turns"
        return step


class TokenBudget(AgentWrapper, RecordConstructorArgs):
    """Ends an episode when the agent's replies have used up `max_tokens` (`stop`: max_tokens).

    An env sees text, not the tokens that were sampled. Where those are known, `Limits.max_sampled_tokens` of
    the Runner counts them exactly; this wrapper is for Gymnasium's loops, and for budgets that belong to the
    task. `info["max_tokens"]` tells whoever samples what is left.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        max_tokens: int,
        count_tokens: str | Callable[[str], int] | None = None,
    ) -> None:
        """What does not explain itself.

        `count_tokens`: a function, or its path `module:function`, with which a spec survives JSON; None: an
        estimate, a token for each four bytes of UTF-8.

        Raises:
            ConfigError: less than one token, or no such function.
        """
        RecordConstructorArgs.__init__(self, max_tokens=max_tokens, count_tokens=count_tokens)
        AgentWrapper.__init__(self, env)
        self.max_tokens = _positive("max_tokens", max_tokens)
        self._count_tokens: Callable[[str], int] = (
            registry.load_object(count_tokens, "count_tokens")
            if isinstance(count_tokens, str)
            else count_tokens or estimated_tokens
        )
        self._used = 0

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """Nothing is used up yet."""
        self._used = 0
        return observation, self._told(info)

    def action(self, action: str | Message) -> str | Message:
        """Count what the agent wrote, calls of tools included."""
        texts = [action] if isinstance(action, str) else list(_written(action))
        self._used += sum(self._count_tokens(text) for text in texts)
        return action

    def answer(self, step: Step) -> Step:
        """What is left?"""
        if self._used >= self.max_tokens:
            step.cut = "max_tokens"
        else:
            step.info = self._told(step.info)
        return step

    def _told(self, info: Info) -> Info:
        left = self.max_tokens - self._used
        own = info.get("max_tokens")
        return {**info, "max_tokens": left if own is None else min(left, own)}


def estimated_tokens(text: str) -> int:
    """One for each four bytes of UTF-8, rounded up."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / 4)


def _written(message: Message) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [message["content"], *(call["name"] for call in calls), *(call["arguments"] for call in calls)]


class ObservationLimit(AgentWrapper, RecordConstructorArgs):
    """Cuts messages to the agent that are longer than `max_characters`, in the middle, and says so there.

    Counter: `observations_cut`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, max_characters: int) -> None:
        """Raises ConfigError: less than one character."""
        RecordConstructorArgs.__init__(self, max_characters=max_characters)
        AgentWrapper.__init__(self, env)
        self.max_characters = _positive("max_characters", max_characters)

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """Cut the prompt."""
        return self._short(observation), info

    def answer(self, step: Step) -> Step:
        """Cut what the env answers."""
        step.observation = self._short(step.observation)
        return step

    def _short(self, observation: Observation) -> Observation:
        messages = observation["messages"]
        if num_long := sum(len(message["content"]) > self.max_characters for message in messages):
            self.count("observations_cut", num_long)
        return {**observation, "messages": tuple(map(self._cut_message, messages))}

    def _cut_message(self, message: Message) -> Message:
        return {**message, "content": cut_output(message["content"], self.max_characters)}


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
    return value
