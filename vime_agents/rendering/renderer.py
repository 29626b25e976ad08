"""The renderer contract: messages -> tokens that extend what is there, and sampled tokens -> a message.

A renderer only ever sees messages that nobody sampled. What the policy sampled enters and leaves as ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from vime_agents.episode import Source
from vime_agents.messages import Message
from vime_agents.token_log import Piece

_SOURCE_OF_ROLE: dict[str, Source] = {
    "system": "system",
    "user": "user",
    "tool": "tool",
    "assistant": "assistant",
}


class Renderer(Protocol):
    """Messages <-> token ids of one model."""

    stop_token_ids: tuple[int, ...]
    """Ids that end a turn."""

    def initial(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Piece]:
        """The whole conversation as a prompt, ready for the assistant to speak."""
        ...

    def extend(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> list[Piece] | None:
        """What to append to `previous_ids`, which end with a sampled reply, for the assistant to speak again.

        None where this model's template does not extend: the caller forks with `initial`.
        """
        ...

    def written(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """The last message, an assistant's that others wrote, as the ids that the model would have sampled.

        They come after `initial(messages[:-1])` and end with a stop token where the model has one.

        Raises:
            ConfigError: the model's template does not continue its own prompt with the message.
        """
        ...

    def parse(self, sampled_ids: Sequence[int]) -> Message:
        """The assistant message that was sampled. Never raises on what a model may say."""
        ...


def source_of(message: Message) -> Source:
    """The span source of a message that nobody sampled."""
    return _SOURCE_OF_ROLE[message["role"]]
