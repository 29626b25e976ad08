"""Chat messages: plain dictionaries in the shape of OpenAI's chat API, checked at the edges.

A message is a `dict`, not a class, because it crosses Gymnasium spaces, JSON files, chat templates and
HTTP unchanged. `check_message` is the one place that says what is valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, NotRequired, Required, TypedDict

from vime_agents.errors import ContractError

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


class FunctionCall(TypedDict):
    """The function half of a tool call."""

    name: str
    arguments: str
    """JSON text as the model wrote it; it may be invalid JSON, which is the model's error to see."""


class ToolCall(TypedDict):
    """One tool call of an assistant message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One chat message."""

    role: Required[Role]
    content: Required[str]
    name: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]


def system(content: str) -> Message:
    """A system message."""
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: str, tool_calls: Sequence[ToolCall] = ()) -> Message:
    """An assistant message, with tool calls if any."""
    message: Message = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return message


def tool_result(content: str, call: ToolCall) -> Message:
    """The answer of a tool to one call."""
    return {
        "role": "tool",
        "content": content,
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
    }


def tool_call(name: str, arguments: Mapping[str, Any] | str, call_id: str) -> ToolCall:
    """A tool call; `arguments` is a mapping, or JSON text as a model wrote it."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def check_message(message: object) -> Message:
    """Return `message` if it is a valid Message.

    Raises:
        ContractError: naming the offending field and its value.
    """
    if not isinstance(message, dict):
        raise ContractError(f"a message is a dict, got {type(message).__name__}: {message!r:.200}")
    if message.get("role") not in ROLES:
        raise ContractError(f"message role must be one of {ROLES}, got {message.get('role')!r}")
    if not isinstance(message.get("content"), str):
        raise ContractError(f"message content must be a str, got {message.get('content')!r:.200}")
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list):
        raise ContractError(f"tool_calls must be a list, got {calls!r:.200}")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(call.get("id"), str)
            or not isinstance(function.get("name"), str)
            or not isinstance(function.get("arguments"), str)
        ):
            raise ContractError(f"not a tool call: {call!r:.200}")
    if calls and message["role"] != "assistant":
        raise ContractError(f"only assistant messages carry tool_calls, got role {message['role']!r}")
    return message  # type: ignore[return-value]


def copied(message: Message) -> Message:
    """A copy that shares nothing that can be changed; much faster than `copy.deepcopy` for plain text."""
    copy: Any = {key: part if type(part) is str else deepcopy(part) for key, part in message.items()}
    return copy


def is_message(message: object) -> bool:
    """Whether `message` is a valid Message."""
    try:
        check_message(message)
    except ContractError:
        return False
    return True


def last_text(messages: Sequence[Message]) -> str:
    """The content of the last assistant message, or ''."""
    for message in reversed(messages):
        if message["role"] == "assistant":
            return message["content"]
    return ""
