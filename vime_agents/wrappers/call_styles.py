"""Tool calls as plain text: how they are described, written and read back, in three styles.

xml: `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`, anywhere, any number of times.
json: the whole reply is such an object, or a list of them; a fence around it is allowed.
fenced: a fenced block whose language is the tool's name holds its JSON arguments, or, for a tool whose one
parameter is text, the text itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from vime_agents.messages import Message

CallStyle = Literal["xml", "json", "fenced"]
CALL_STYLES: tuple[CallStyle, ...] = get_args(CallStyle)
Schema = Mapping[str, Any]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_HOW: Mapping[CallStyle, str] = {
    "xml": f'To call one, write {_OPEN}{{"name": "NAME", "arguments": {{...}}}}{_CLOSE}.',
    "json": 'To call one, reply with {"name": "NAME", "arguments": {...}} and nothing else.',
    "fenced": "To call one, write a fenced block: its name as the language, its arguments inside, in JSON."
    '\n```NAME\n{"PARAMETER": ...}\n```',
}


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call that was read from text."""

    name: str
    arguments: str
    """JSON, or what could not be read."""
    problem: str = ""
    """Why it is no call."""


def described(schemas: Sequence[Schema], style: CallStyle) -> str:
    """What the model is told about its tools."""
    functions = [schema["function"] for schema in schemas]
    lines = ["You can call tools. Their answers come in the next message.", ""]
    for function in functions:
        parameters = json.dumps(function["parameters"], ensure_ascii=False)
        lines.append(f"{function['name']}: {function.get('description', '')}\n  parameters: {parameters}")
    lines += ["", how_to_call(schemas, style)]
    return "\n".join(lines)


def how_to_call(schemas: Sequence[Schema], style: CallStyle) -> str:
    """How a call is written."""
    texts = [name for name in map(_name, schemas) if style == "fenced" and _text_parameter(schemas, name)]
    if not texts:
        return _HOW[style]
    return f"{_HOW[style]}\nFor {', '.join(texts)} the block holds the text alone, without JSON."


def written(call: Mapping[str, Any], schemas: Sequence[Schema], style: CallStyle) -> str:
    """A native call as the text that would have made it."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if style == "fenced":
        parameter, values = _text_parameter(schemas, name), _loaded(arguments)
        if parameter and isinstance(values, dict) and isinstance(values.get(parameter), str):
            arguments = values[parameter]
        return f"```{name}\n{arguments}\n```"
    body = f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}'
    return f"{_OPEN}{body}{_CLOSE}" if style == "xml" else body


def read_calls(text: str, schemas: Sequence[Schema], style: CallStyle) -> list[ReadCall]:
    """The calls in a reply, in order, with those that were meant but cannot be read. Linear in its length."""
    if style == "fenced":
        return list(_fenced(text, schemas))
    if style == "xml":
        return [call for block in _tagged(text) for call in _from_json(block, list_allowed=False)]
    stripped = text.strip()
    if stripped.startswith("```"):
        stripped = stripped.partition("\n")[2].removesuffix("```").strip()
    if not stripped.startswith(("{", "[")):
        return []
    value = _loaded(stripped)
    first = value[0] if isinstance(value, list) and value else value
    is_call = isinstance(first, dict) and first.keys() >= {"name", "arguments"}
    if is_call or (value is _NO_JSON and '"arguments"' in stripped):
        return _from_json(stripped, list_allowed=True)
    return []  # JSON, but an answer


def _tagged(text: str) -> Iterator[str]:
    place = text.find(_OPEN)
    while place >= 0:
        end = text.find(_CLOSE, place)
        if end < 0:  # a stop string may have taken the end away
            yield text[place + len(_OPEN) :]
            return
        yield text[place + len(_OPEN) : end]
        place = text.find(_OPEN, end)


def _from_json(block: str, *, list_allowed: bool) -> list[ReadCall]:
    value = _loaded(block)
    if value is _NO_JSON:
        return [ReadCall("", block, "it is not valid JSON")]
    values = value if list_allowed and isinstance(value, list) else [value]
    return [_checked(value, block) for value in values]


def _checked(value: Any, block: str) -> ReadCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ReadCall("", block, 'it has no "name"')
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):  # JSON inside of JSON, as native calls have it
        return ReadCall(value["name"], arguments)
    return ReadCall(value["name"], json.dumps(arguments))


def _fenced(text: str, schemas: Sequence[Schema]) -> Iterator[ReadCall]:
    names = set(map(_name, schemas))
    name: str | None = None
    body: list[str] = []
    for line in text.split("\n"):
        if name is None and line.startswith("```") and line[3:].strip() in names:
            name, body = line[3:].strip(), []
        elif name is not None and line.rstrip() == "```":
            yield _block(name, "\n".join(body), schemas)
            name = None
        elif name is not None:
            body.append(line)
    if name is not None:  # a stop string may have taken the end away
        yield _block(name, "\n".join(body), schemas)


def _block(name: str, body: str, schemas: Sequence[Schema]) -> ReadCall:
    parameter = _text_parameter(schemas, name)
    if parameter is None:
        return ReadCall(name, body)
    values = _loaded(body)
    if isinstance(values, dict) and values.keys() == {parameter}:
        return ReadCall(name, body)
    return ReadCall(name, json.dumps({parameter: body}))


def _name(schema: Schema) -> str:
    return schema["function"]["name"]


def _text_parameter(schemas: Sequence[Schema], name: str) -> str | None:
    """Of a tool that has this one parameter only, and text is what it takes."""
    for schema in schemas:
        properties = schema["function"]["parameters"].get("properties", {})
        if _name(schema) == name and len(properties) == 1:
            ((parameter, kind),) = properties.items()
            return parameter if kind.get("type") == "string" else None
    return None


_NO_JSON = object()


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


def as_text(message: Message, schemas: Sequence[Schema], style: CallStyle) -> Message:
    """A message without native calls: an assistant's are written into its text."""
    if "tool_calls" not in message:
        return message
    calls = [written(call, schemas, style) for call in message.get("tool_calls", ())]
    return {"role": "assistant", "content": "\n".join(filter(None, [message["content"], *calls]))}
