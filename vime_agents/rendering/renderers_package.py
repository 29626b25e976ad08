"""Renders with the package `renderers`, for the model families that it knows by heart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from vime_agents.errors import ConfigError
from vime_agents.messages import Message, assistant, tool_call
from vime_agents.rendering.renderer import source_of
from vime_agents.token_log import Piece


class PackageRenderer:
    """Adapts a `renderers.Renderer` (not its DefaultRenderer, which cannot extend)."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self.stop_token_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())

    def initial(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Piece]:
        """The whole conversation."""
        rendered = self._renderer.render(
            [dict(m) for m in messages], tools=_tool_specs(tools), add_generation_prompt=True
        )
        return _pieces(rendered.token_ids, rendered.message_indices, messages)

    def extend(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> list[Piece] | None:
        """What `bridge_to_next_turn` adds; None where it cannot prove that the prefix is kept."""
        held = list(previous_ids)
        # The package looks for the end of turn in the completion alone, so the last id has to be in it.
        rendered = self._renderer.bridge_to_next_turn(
            held[:-1], held[-1:], [dict(m) for m in new_messages], tools=_tool_specs(tools)
        )
        if rendered is None or list(rendered.token_ids[: len(held)]) != held:
            return None
        return _pieces(rendered.token_ids[len(held) :], rendered.message_indices[len(held) :], new_messages)

    def written(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """What the whole conversation has behind the prompt, up to the last stop token."""
        prompt = [i for piece in self.initial(messages[:-1], tools) for i in piece.token_ids]
        rendered = self._renderer.render(
            [dict(m) for m in messages], tools=_tool_specs(tools), add_generation_prompt=False
        )
        whole = list(rendered.token_ids)
        reply = whole[len(prompt) :]
        while reply and reply[-1] not in self.stop_token_ids:
            reply.pop()
        if whole[: len(prompt)] != prompt or not reply:
            raise ConfigError(
                f"--renderer: {type(self._renderer).__name__} does not write a whole turn as the prompt of a "
                "turn, a reply and a stop token; use --renderer auto"
            )
        return reply

    def parse(self, sampled_ids: Sequence[int]) -> Message:
        """The reply; a call that cannot be read is kept, for the env to answer with an error."""
        parsed = self._renderer.parse_response(list(sampled_ids))
        calls = [
            tool_call(
                call.name or "",
                call.arguments if isinstance(call.arguments, (dict, str)) else call.raw,
                f"call_{n}",
            )
            for n, call in enumerate(parsed.tool_calls)
        ]
        return assistant(parsed.content, calls)


def _tool_specs(tools: Sequence[dict[str, Any]]) -> list[Any] | None:
    return list(tools) or None


def _pieces(ids: Sequence[int], owners: Sequence[int], messages: Sequence[Message]) -> list[Piece]:
    """Runs of tokens with one owner; -1 is the template's own."""
    pieces, start = [], 0
    for owner, run in groupby(owners):
        end = start + len(list(run))
        source = source_of(messages[owner]) if owner >= 0 else "template"
        pieces.append(Piece(token_ids=tuple(ids[start:end]), source=source))
        start = end
    return pieces
