"""Renders messages as their plain contents, one after the other: few-shot prompts that a model continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vime_agents.messages import Message, assistant
from vime_agents.rendering.renderer import source_of
from vime_agents.token_log import Piece


class TextRenderer:
    """No template at all. Tools are not announced: the prompt shows by example how to call them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        self.stop_token_ids: tuple[int, ...] = () if eos is None else (int(eos),)

    def initial(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Piece]:
        """The contents, tokenised as one text (a merge across a boundary belongs to the earlier message)."""
        text = "".join(m["content"] for m in messages)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in encoded["offset_mapping"]]
        pieces, position, end = [], 0, 0
        for message in messages:
            end += len(message["content"])
            stop = position
            while stop < len(starts) and starts[stop] < end:
                stop += 1
            pieces.append(
                Piece(token_ids=tuple(encoded["input_ids"][position:stop]), source=source_of(message))
            )
            position = stop
        return pieces

    def extend(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> list[Piece]:
        """The contents of the new messages, each tokenised by itself."""
        return [
            Piece(
                token_ids=tuple(self._tokenizer(m["content"], add_special_tokens=False)["input_ids"]),
                source=source_of(m),
            )
            for m in new_messages
        ]

    def written(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """The last content and the end-of-text token."""
        ids = self._tokenizer(messages[-1]["content"], add_special_tokens=False)["input_ids"]
        return [*ids, *self.stop_token_ids[:1]]

    def parse(self, sampled_ids: Sequence[int]) -> Message:
        """The sampled text, special tokens left out."""
        return assistant(self._tokenizer.decode(list(sampled_ids), skip_special_tokens=True))
