"""The policy contract: a conversation in, the next message out, with exact tokens where they exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from vime_agents.messages import Message
from vime_agents.token_log import TokenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. Every value is sent explicitly; a server's own defaults never apply."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: all tokens."""
    max_tokens: int = 256
    """Most tokens to sample in one turn."""
    stop: tuple[str, ...] = ()
    """Strings that end the turn; they are part of what was sampled."""
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one call cost."""

    prompt_tokens: int | None = None
    """None where the server does not say."""
    sampled_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    """Those of `prompt_tokens` that the server had in its prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A policy's answer to one call."""

    message: Message
    finish_reason: str
    """stop, length, tool_calls, abort, ... as the engine says."""
    usage: Usage = field(default_factory=Usage)
    """Of the call that was answered, also where the answer is kept from then."""
    from_cache: bool = False
    """Whether nobody was asked: the answer is one to an earlier call."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One agent's side of an episode: what it saw, what it said, and the exact tokens of both."""

    agent: str
    episode_id: str
    """Also the routing key: all turns of an episode go to the same engine (prefix cache)."""
    of_episode: str = ""
    """The episode's own id, the same for all its attempts and agents; empty: not known."""
    tools: Sequence[dict[str, Any]] = ()
    """Schemas, in the shape of OpenAI's `tools`."""
    messages: list[Message] = field(default_factory=list)
    """All messages so far, replies included."""
    num_seen: int = 0
    """How many of `messages` the policy has read: the rest is new."""
    log: TokenLog = field(default_factory=TokenLog)
    """Filled by policies that give exact tokens."""
    turn: int = 0

    def observe(self, messages: Sequence[Message]) -> None:
        """Append what the env said."""
        self.messages.extend(messages)

    def take_new(self) -> list[Message]:
        """Messages that the policy has not read yet; marks them as read."""
        new = self.messages[self.num_seen :]
        self.num_seen = len(self.messages)
        return new

    def replied(self, message: Message) -> None:
        """Append the policy's own reply."""
        self.messages.append(message)
        self.num_seen = len(self.messages)
        self.turn += 1


@runtime_checkable
class Policy(Protocol):
    """Plays one or more agents.

    Guarantees: `act` does not change `conversation.messages`; a policy with `exact_tokens` appends to
    `conversation.log` exactly what the engine read and sampled, and nothing if it raises before sampling.

    Raises (from `act`):
        EngineError: the engine failed (retryable). ModelError: the reply cannot be used.
        ContextLengthExceeded: the prompt leaves no room; the episode is truncated, not failed.
        TimeoutError: `timeout_s` passed.
    """

    name: str
    exact_tokens: bool

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """The next message of `conversation.agent`."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class ContextLengthExceeded(Exception):
    """The prompt leaves no room to sample: the episode is truncated with `context_length`."""

    def __init__(self, num_tokens: int, limit: int) -> None:
        self.num_tokens, self.limit = num_tokens, limit
        super().__init__(num_tokens, limit)

    def __str__(self) -> str:
        return f"{self.num_tokens} prompt tokens, context of {self.limit}"
