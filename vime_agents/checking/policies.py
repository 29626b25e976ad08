"""Policies without a model, beyond `policies/scripted.py`: fixed replies, and samples of the action space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from vime_agents import messages as msg
from vime_agents.messages import Message
from vime_agents.multi_agent.seat_view import SeatView
from vime_agents.policy import Conversation, Generation, Sampling


class FixedReplies:
    """Gives the replies in turn, and the last one again and again."""

    exact_tokens = False

    def __init__(self, replies: Sequence[str | Message]) -> None:
        self.replies, self.name = replies, "fixed"

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """The next reply."""
        reply = self.replies[min(conversation.turn, len(self.replies) - 1)]
        message = msg.assistant(reply) if isinstance(reply, str) else reply
        return Generation(message=message, finish_reason="stop")

    async def aclose(self) -> None:
        """Nothing to release."""


class RandomActions:
    """Samples the env's action space, which it seeds with the episode's seed."""

    exact_tokens = False
    name = "random"

    def __init__(self) -> None:
        self._spaces: dict[str, gymnasium.Space[Any]] = {}
        """By episode, and of several agents by agent."""

    def begin(self, conversation: Conversation, env: gymnasium.Env[Any, Any] | SeatView) -> None:
        """Called before the first turn."""
        self._spaces[conversation.episode_id] = env.action_space

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """A sample."""
        space = self._spaces[conversation.episode_id]
        if conversation.turn == 0:
            space.seed(sampling.seed)
        reply = space.sample()
        message = msg.assistant(reply) if isinstance(reply, str) else reply
        return Generation(message=message, finish_reason="stop")

    async def aclose(self) -> None:
        """Nothing to release."""
