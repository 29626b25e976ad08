"""How a person writes a reply: text, and tool calls as `/name argument=value`.

    /add a=1 b=2                      by name; a value with spaces stands in quotes
    /python import math; math.pi      the only parameter needs no name; the text may go on in more lines
    /add {"a": 1, "b": 2}             JSON, sent as it stands
    //home                            text that begins with a slash

Calls in several lines are one message; text before the first call is its content.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from vime_agents import messages as msg
from vime_agents.cli.tool_text import parameters_of, required_of, signature
from vime_agents.errors import did_you_mean
from vime_agents.messages import Message, ToolCall

_CALL_LINE = re.compile(r"^(?=/(?!/))", re.MULTILINE)
_SLASHES = re.compile(r"^/(?=/)", re.MULTILINE)
_NAMED = re.compile(r"\s*(\w+)=")


class NotUnderstood(Exception):
    """A reply that cannot be read; the message is for the person, who is asked again."""


def parse_reply(text: str, schemas: Sequence[Mapping[str, Any]], turn: int = 0) -> Message:
    """What a person wrote, as the message that a model would have sent. Raises NotUnderstood.

    Args:
        text: one line or more.
        schemas: of the tools, in the shape of OpenAI's `tools`.
        turn: makes the ids of calls unique in an episode.
    """
    first, *rest = _CALL_LINE.split(text)
    content = _SLASHES.sub("", first)
    calls = [_call(part, schemas, f"call-{turn}-{i}") for i, part in enumerate(rest)]
    return msg.assistant(content.removesuffix("\n") if calls else content, calls)


def format_reply(reply: Message, schemas: Sequence[Mapping[str, Any]] = ()) -> str:
    """What `parse_reply` reads as this reply; of calls that no tool can take, something close to it."""
    lines = [re.sub(r"^/", "//", reply["content"], flags=re.MULTILINE)] if reply["content"] else []
    calls = (_format_call(call, schemas) for call in reply.get("tool_calls", ()))
    return "\n".join([*lines, *(text.replace("\n/", "\n//") for text in calls)])


def as_sampled(text: str, stop: Sequence[str]) -> str:
    """The text as an engine would have ended it: at the first stop string, which stays part of it.

    Where a line end is one, it is the line end that the person typed.
    """
    text += "\n" if "\n" in stop else ""
    ends = [text.index(s) + len(s) for s in stop if s in text]
    return text[: min(ends)] if ends else text


def completions(line: str, schemas: Sequence[Mapping[str, Any]], commands: Sequence[str] = ()) -> list[str]:
    """What the last word of `line`, up to the cursor, may become.

    Args:
        line: what stands before the cursor.
        schemas: of the tools.
        commands: words that are no tools, without their slash.
    """
    if not line.startswith("/"):
        return []
    *before, word = line.split(" ")
    functions = {s["function"]["name"]: s["function"] for s in schemas}
    if not before:
        names = [f"/{name} " for name in functions] + [
            f"/{name} " for name in commands if name not in functions
        ]
        return [name for name in names if name.startswith(word)]
    parameters = parameters_of(functions.get(before[0][1:], {}))
    given = {part.partition("=")[0] for part in before[1:]}
    name, equals, _ = word.partition("=")
    if not equals:
        return [f"{p}=" for p in parameters if p.startswith(word) and p not in given]
    values = [f"{name}={value} " for value in _values(parameters.get(name, {}))]
    return [value for value in values if value.startswith(word)]


def function_of(name: str, schemas: Sequence[Mapping[str, Any]], commands: Sequence[str] = ()) -> Any:
    """The tool called `name`. Raises NotUnderstood, with the nearest tool or command."""
    functions = {s["function"]["name"]: s["function"] for s in schemas}
    if name in functions:
        return functions[name]
    hint = did_you_mean(name, [*functions, *commands], "/{}")
    there = f"There are: {', '.join(functions)}." if functions else "There are none."
    raise NotUnderstood(f"no tool {name!r}.{hint} {there} Text that begins with a slash is written //...")


def _call(text: str, schemas: Sequence[Mapping[str, Any]], call_id: str) -> ToolCall:
    name, rest = re.fullmatch(r"/(\S*)\s?(.*)", text.removesuffix("\n"), re.DOTALL).groups()  # type: ignore[union-attr]
    function = function_of(name, schemas)
    rest = _SLASHES.sub("", rest)
    if rest.lstrip().startswith("{"):
        return msg.tool_call(name, rest.strip(), call_id)
    return msg.tool_call(name, _arguments(rest, function), call_id)


def _arguments(text: str, function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = parameters_of(function)
    named = _NAMED.match(text)
    if len(parameters) == 1 and text.strip() and not (named and named[1] in parameters):
        ((name, schema),) = parameters.items()
        return {name: _value(text, schema)}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise NotUnderstood(f"{function['name']}: {str(error).lower()} in {text!r}") from error
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise NotUnderstood(f"{word!r} is no argument=value; the call is {signature(function)}")
        if name not in parameters:
            hint = did_you_mean(name, parameters, "{}=")
            raise NotUnderstood(
                f"{function['name']} takes no {name!r}.{hint} The call is {signature(function)}"
            )
        if name in arguments:
            raise NotUnderstood(f"{name}= is given twice")
        arguments[name] = _value(value, parameters[name])
    if missing := [name for name in required_of(function) if name not in arguments]:
        raise NotUnderstood(
            f"{function['name']} needs {', '.join(missing)}; the call is {signature(function)}"
        )
    return arguments


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """JSON where the parameter may be of its type, else the text itself: what is wrong, the tool says."""
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if not kinds or _kind_of(value) & kinds else text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty: any."""
    if "enum" in schema:
        return set().union(*(_kind_of(value) for value in schema["enum"]))
    if "anyOf" in schema:
        options = [_kinds(option) for option in schema["anyOf"]]
        return set().union(*options) if all(options) else set()
    kind = schema.get("type", [])
    return {kind} if isinstance(kind, str) else set(kind)


def _kind_of(value: object) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    names = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def _values(schema: Mapping[str, Any]) -> list[str]:
    """The values of a parameter that has only a few."""
    if "anyOf" in schema:
        return [value for option in schema["anyOf"] for value in _values(option)]
    if "enum" in schema:
        return [shlex.quote(v) if isinstance(v, str) else json.dumps(v) for v in schema["enum"]]
    return {"boolean": ["true", "false"], "null": ["null"]}.get(schema.get("type", ""), [])


def _format_call(call: ToolCall, schemas: Sequence[Mapping[str, Any]]) -> str:
    name, text = call["function"]["name"], call["function"]["arguments"]
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    functions = {s["function"]["name"]: s["function"] for s in schemas}
    parameters = parameters_of(functions.get(name, {}))
    if not isinstance(arguments, dict) or not arguments.keys() <= parameters.keys():
        return f"/{name} {text}"
    texts = {key: _text_of(value, parameters[key]) for key, value in arguments.items()}
    if any(text is None for text in texts.values()):
        return f"/{name} {json.dumps(arguments)}"
    only = next(iter(texts.values()), None)
    if len(parameters) == 1 and only and _stands_alone(only, parameters):
        return f"/{name} {only}"
    return " ".join([f"/{name}", *(f"{key}={_quoted(str(text))}" for key, text in texts.items())])


def _stands_alone(text: str, parameters: Mapping[str, Any]) -> bool:
    """Whether the text of an only argument reads as what it is, without its name and quotes."""
    named = _NAMED.match(text)
    return text == text.strip() and text[0] != "{" and not (named and named[1] in parameters)


def _quoted(text: str) -> str:
    """As `shlex.split` reads it, and a person as well: quotes around, of the kind that is not inside."""
    if "'" not in text:
        return shlex.quote(text)
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def _text_of(value: object, schema: Mapping[str, Any]) -> str | None:
    """What `_value` reads as `value`; None: there is no such text."""
    for text in (value, json.dumps(value)):
        # As JSON: True is no 1.
        if isinstance(text, str) and json.dumps(_value(text, schema)) == json.dumps(value):
            return text
    return None
