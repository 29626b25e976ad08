"""Renders through a model's own chat template, incrementally, with an exact-prefix check.

The template is a black box from messages to text. What a new message adds to a conversation is found by
rendering a two-message stand-in with and without it:

    template([user, assistant X])             = ... X <end of turn>
    template([user, assistant X, tool T], go) = ... X <end of turn> T ... <go>

If the second continues the first after X, the difference is what to append after a sampled reply; if it does
not, the template rewrites history and `extend` says None. The reply itself is never rendered.

A template that drops the thoughts of earlier turns (Qwen3: once the user speaks again, not after tools)
rewrites history where there are any: a stand-in with a thought shows whether it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from vime_agents.errors import ConfigError
from vime_agents.messages import Message, ToolCall, assistant, tool_call
from vime_agents.rendering.renderer import source_of
from vime_agents.token_log import Piece

_STAND_IN = "(a reply that stands in for the sampled one)"
_THOUGHT = "(a thought that stands in)"
_HERMES_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


class ChatTemplateRenderer:
    """Any Hugging Face tokenizer with a chat template; tool calls in the Hermes form `<tool_call>{json}`."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(f"--hf-checkpoint {tokenizer.name_or_path}: the tokenizer has no chat template")
        self._tokenizer = tokenizer
        self.stop_token_ids: tuple[int, ...] = (int(tokenizer.eos_token_id),)

    def initial(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Piece]:
        """The template's text, tokenised as a whole; a token belongs to the message in which it starts."""
        text = self._text(messages, tools, go=True)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, starts = encoded["input_ids"], [s for s, _ in encoded["offset_mapping"]]
        pieces, position = [], 0
        for index, message in enumerate(messages):
            so_far = self._text(messages[: index + 1], tools, go=False)
            if not text.startswith(so_far):
                break  # the template looks ahead; the rest is attributed to it
            stop = position
            while stop < len(ids) and starts[stop] < len(so_far):
                stop += 1
            pieces.append(Piece(token_ids=tuple(ids[position:stop]), source=source_of(message)))
            position = stop
        return [*pieces, Piece(token_ids=tuple(ids[position:]), source="template")]

    def extend(
        self,
        previous_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> list[Piece] | None:
        """The rest of the assistant's turn, the new messages, and the start of the next reply."""
        if any(m["role"] == "assistant" for m in new_messages):
            return None
        head: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _STAND_IN}]
        after = self._text([*head, *new_messages], tools, go=True).partition(_STAND_IN)[2]
        close = self._turn_close
        if not after.startswith(close) or self._drops_thought_of(previous_ids, new_messages, tools):
            return None
        rest = after.removeprefix(close)
        if previous_ids and previous_ids[-1] in self.stop_token_ids:
            # The model sampled its own end of turn: only what the template puts behind it is missing.
            close = close.partition(self._tokenizer.eos_token)[2]
        pieces = [self._piece(close, "template")]
        texts = self._split(rest, head, new_messages, tools)
        pieces += [self._piece(text, source_of(m)) for text, m in zip(texts, new_messages, strict=False)]
        pieces.append(self._piece(rest[sum(map(len, texts)) :], "template"))
        return [p for p in pieces if p.token_ids]

    def written(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """What the template adds to the prompt for the last message, up to its end of turn."""
        prompt, whole = self._text(messages[:-1], tools, go=True), self._text(messages, tools, go=False)
        text, end, _ = whole.removeprefix(prompt).rpartition(self._tokenizer.eos_token)
        if not (whole.startswith(prompt) and end):
            raise ConfigError(
                f"--hf-checkpoint {self._tokenizer.name_or_path}: the chat template does not write a turn "
                f"as the prompt of a turn, a reply and {self._tokenizer.eos_token!r}: "
                f"{whole[-200:]!r} after {prompt[-200:]!r}"
            )
        return self._tokenizer(text + end, add_special_tokens=False)["input_ids"]

    def parse(self, sampled_ids: Sequence[int]) -> Message:
        """Text before the first tool call, and every `<tool_call>` block (bad JSON is kept as it is)."""
        kept = [i for i in sampled_ids if i not in self.stop_token_ids]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        blocks = _HERMES_CALL.findall(text)
        calls = [_parse_call(block, f"call_{n}") for n, block in enumerate(blocks)]
        content = text.partition("<tool_call>")[0] if blocks else text
        return assistant(content.strip() if blocks else content, calls)

    @cached_property
    def _turn_close(self) -> str:
        """What the template writes after an assistant's content, e.g. `<|im_end|>` and a newline."""
        head: list[Message] = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _STAND_IN}]
        close = self._text(head, (), go=False).partition(_STAND_IN)[2]
        if self._tokenizer.eos_token not in close:
            raise ConfigError(
                f"--hf-checkpoint {self._tokenizer.name_or_path}: the chat template ends an assistant turn "
                f"with {close!r}, without the tokenizer's eos token {self._tokenizer.eos_token!r}"
            )
        return close

    def _drops_thought_of(
        self, previous_ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> bool:
        """Whether there are thoughts behind the first prompt that the template takes out now."""
        if not self._drops_thoughts or self._keeps_thought(new_messages, tools):
            return False
        return "</think>" in self._tokenizer.decode(previous_ids).partition(self._reply_start)[2]

    @cached_property
    def _reply_start(self) -> str:
        """What the template writes before a reply, e.g. `<|im_start|>assistant` and a newline."""
        question: list[Message] = [{"role": "user", "content": "u"}]
        return self._text(question, (), go=True).removeprefix(self._text(question, (), go=False))

    @cached_property
    def _drops_thoughts(self) -> bool:
        """Whether the template ever does, told by a user's message, without rendering more each turn."""
        return not self._keeps_thought([{"role": "user", "content": "u"}], ())

    def _keeps_thought(self, new_messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> bool:
        head: list[Message] = [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\n{_STAND_IN}"},
        ]
        return _THOUGHT in self._text([*head, *new_messages], tools, go=False)

    def _split(
        self,
        rest: str,
        head: Sequence[Message],
        new_messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> list[str]:
        """The text of each new message; shorter than `new_messages` where the template looks ahead."""
        texts: list[str] = []
        done = ""
        for index in range(len(new_messages)):
            text = self._text([*head, *new_messages[: index + 1]], tools, go=False)
            so_far = text.partition(_STAND_IN)[2].removeprefix(self._turn_close)
            if not rest.startswith(so_far):
                break
            texts.append(so_far.removeprefix(done))
            done = so_far
        return texts

    def _text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, go: bool) -> str:
        return self._tokenizer.apply_chat_template(
            [_for_template(m) for m in messages],
            tools=list(tools) or None,
            add_generation_prompt=go,
            tokenize=False,
        )

    def _piece(self, text: str, source: Any) -> Piece:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return Piece(token_ids=tuple(ids), source=source)


def _for_template(message: Message) -> dict[str, Any]:
    """Templates want tool arguments as a mapping."""
    out: dict[str, Any] = dict(message)
    calls = message.get("tool_calls")
    if calls:
        out["tool_calls"] = [c | {"function": _with_parsed_arguments(c)} for c in calls]
    return out


def _with_parsed_arguments(call: ToolCall) -> dict[str, Any]:
    function = call["function"]
    try:
        return {"name": function["name"], "arguments": json.loads(function["arguments"])}
    except json.JSONDecodeError:
        return dict(function)


def _parse_call(block: str, call_id: str) -> ToolCall:
    """A block's JSON; what cannot be read becomes a call that the env answers with an error."""
    try:
        data = json.loads(block)
    except json.JSONDecodeError:
        return tool_call("", block, call_id)
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return tool_call("", block, call_id)
    arguments = data.get("arguments", {})
    return tool_call(
        data["name"], arguments if isinstance(arguments, (dict, str)) else json.dumps(arguments), call_id
    )
