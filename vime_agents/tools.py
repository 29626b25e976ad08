"""Tools: typed functions that a model can call.

The schema is made when the tool is defined, so that a wrong hint fails at import, naming file and line.
Who sees which error: a `ToolError`, bad arguments and any exception of the author's go back to the model as
the tool's answer; `EnvFault` and `SandboxError` are infrastructure and end the episode.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import typing
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import pydantic

from vime_agents.errors import ContractError, ToolError
from vime_agents.sandbox import Sandbox

MAX_REPAIR_CHARS = 4_000
"""Longer arguments are not repaired: the time grows with the square, to a second for the worst of these."""


class Tool:
    """A function with a name, a description and a JSON schema. Made by `@tool`."""

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        self.function = function
        self.name = name or function.__name__
        where = _where(function)
        doc = inspect.getdoc(function)
        if not doc:
            raise ContractError(f"{where}: tool {self.name!r} needs a docstring: the model reads it")
        self.description, arg_docs = _split_docstring(doc)
        self.arguments_model = _arguments_model(function, self.name, arg_docs, where)
        self.parameters: dict[str, Any] = self.arguments_model.model_json_schema()
        self.parameters.pop("title", None)
        functools.update_wrapper(self, function)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the shape of OpenAI's `tools` parameter."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    def __get__(self, instance: object, owner: type | None = None) -> Tool | BoundTool:
        return self if instance is None else BoundTool(tool=self, instance=instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, as if it were not decorated."""
        return self.function(*args, **kwargs)

    def parse_arguments(self, text: str) -> dict[str, Any]:
        """JSON text -> checked keyword arguments.

        Raises:
            ToolError: worded for the model.
        """
        try:
            raw = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:  # also numbers and nesting beyond what Python reads
            raise ToolError(f"arguments of {self.name} are not valid JSON: {error}") from error
        try:
            model = self.arguments_model.model_validate(raw)
        except pydantic.ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()
            )
            raise ToolError(f"bad arguments for {self.name}: {problems}") from error
        return {str(f.alias): getattr(model, name) for name, f in type(model).model_fields.items()}

    async def call(self, arguments: str, run_sync: RunSync) -> str:
        """Run a tool that is a plain function; see `BoundTool.call`."""
        return await self._run(arguments, run_sync)

    async def _run(self, arguments: str, run_sync: RunSync, *instance: object) -> str:
        function = functools.partial(self.function, *instance, **self.parse_arguments(arguments))
        if inspect.iscoroutinefunction(self.function):
            answer = await function()
        else:
            answer = await run_sync(function)
            if inspect.isawaitable(answer):  # a decorated `async def` does not look like one
                answer = await answer
        return answer if isinstance(answer, str) else json.dumps(answer, default=str)


@runtime_checkable
class CallableTool(Protocol):
    """What an env can offer to the model: a `@tool` function or method, or a tool that lives elsewhere."""

    @property
    def name(self) -> str:
        """By which the model calls it."""
        ...

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the shape of OpenAI's `tools` parameter."""
        ...

    async def call(self, arguments: str, run_sync: RunSync) -> str:
        """Run it on JSON arguments; the answer as text. Raises ToolError."""
        ...


class BoundTool:
    """A tool method together with its instance."""

    def __init__(self, *, tool: Tool, instance: object) -> None:
        self.tool, self.instance = tool, instance

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the shape of OpenAI's `tools` parameter."""
        return self.tool.schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain method."""
        return self.tool.function(self.instance, *args, **kwargs)

    async def call(self, arguments: str, run_sync: RunSync) -> str:
        """Run the tool on JSON arguments; the answer as text.

        Args:
            arguments: JSON text as the model wrote it.
            run_sync: runs a blocking function off the event loop.

        Raises:
            ToolError: bad arguments, or the tool's own.
        """
        return await self.tool._run(arguments, run_sync, self.instance)


RunSync = Callable[[Callable[[], Any]], Awaitable[Any]]


def tool(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make a function or method a tool: `@tool` or `@tool(name="...")`.

    Raises:
        ContractError: at definition, for a missing docstring or type hint, or a parameter that the
            docstring's `Args:` does not explain.
    """
    if function is None:
        return lambda f: Tool(f, name=name)
    return Tool(function, name=name)


class ToolHost(Protocol):
    """What a `Toolset` may use of the environment that it belongs to; every `ToolEnv` has it."""

    async def sandbox(self) -> Sandbox:
        """The episode's sandbox."""
        ...

    def count(self, name: str, amount: float = 1) -> None:
        """Add to one of the episode's metrics."""
        ...

    def finish(self, answer: str) -> None:
        """End the episode with this turn, with `answer` for `score`."""
        ...


class Toolset:
    """Tools that share the state of one episode.

    A `ToolEnv` that names the class in `toolsets` makes an instance for each episode, calls `setup` after its
    own, and `close` when the episode ends, also after a failure. Both may be `def` or `async def`.
    """

    def __init__(self, host: ToolHost) -> None:
        self.host = host

    @property
    def tools(self) -> Mapping[str, CallableTool]:
        """By name; here the `@tool` methods. What it holds after `setup` counts."""
        return tools_of(self)

    def setup(self) -> Any:
        """Called at the start of the episode."""

    def close(self) -> Any:
        """Free everything that `setup` or a tool made."""


def tools_of(instance: object) -> dict[str, BoundTool]:
    """Every `@tool` method of an object, by name, in the order of definition (base classes first)."""
    found: dict[str, BoundTool] = {}
    for cls in reversed(type(instance).__mro__):
        for value in vars(cls).values():
            if isinstance(value, Tool):
                found[value.name] = BoundTool(tool=value, instance=instance)
    return found


async def repaired_arguments(text: str, run_sync: RunSync) -> str | None:
    """Almost valid JSON -> the JSON object that was meant; None when it is valid, or there is no telling.

    Quotes, commas, fences and stray text around the object are repaired. Text that was cut off is not: half
    of a command is not what the model meant.

    Args:
        text: as the model wrote it.
        run_sync: runs a blocking function off the event loop.
    """
    if not text.strip() or _read_json(text) is not _NOT_JSON:
        return None
    if isinstance(arguments := _read_json(text, strict=False), dict):  # line feeds inside of strings, no more
        return json.dumps(arguments)
    return None if len(text) > MAX_REPAIR_CHARS else await run_sync(lambda: _repaired(text))


def cut_output(text: str, max_chars: int) -> str:
    """The beginning and the end of a text that is too long, and between them how much was cut.

    A character is never split, also not one that a person sees as one (a letter and its accents, an emoji).
    """
    if len(text) <= max_chars:
        return text
    head, tail = (max_chars + 1) // 2, len(text) - max_chars // 2
    for _ in range(32):  # marks can be piled up without end
        head -= _is_inside_a_character(text, head)
        tail += _is_inside_a_character(text, tail)
    return f"{text[:head]}\n[... {tail - head} of {len(text)} characters were cut ...]\n{text[tail:]}"


async def run_off_loop(function: Callable[[], Any]) -> Any:
    """The default `RunSync`: a thread of the loop's executor."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


_NOT_JSON = object()


def _read_json(text: str, *, strict: bool = True) -> object:
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _repaired(text: str) -> str | None:
    import json_repair

    # Only where the arguments are whole is what follows them an object of its own.
    end = {"\0end": 0}
    try:
        found = json_repair.loads(f"{text} {json.dumps(end)}")
    except (ValueError, RecursionError):
        return None
    match found:
        case [dict() as arguments, last] if last == end and not _lost_a_value(arguments, text):
            return json.dumps(arguments)
    return None


def _lost_a_value(value: object, text: str) -> bool:
    """Whether an empty string stands where the text has none: so a repair calls what it could not read."""
    if isinstance(value, Mapping):
        return any(_lost_a_value(v, text) for v in value.values())
    if isinstance(value, list):
        return any(_lost_a_value(v, text) for v in value)
    return value == "" and '""' not in text and "''" not in text


def _is_inside_a_character(text: str, at: int) -> bool:
    """Whether a cut before `text[at]` would split a character."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    return (
        unicodedata.category(after).startswith("M")
        or "\u200d" in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or (before == "\r" and after == "\n")
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
    )


def _where(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _arguments_model(
    function: Callable[..., Any], name: str, docs: Mapping[str, str], where: str
) -> type[pydantic.BaseModel]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ContractError(f"{where}: tool {name!r}: unknown type in a hint: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ContractError(f"{where}: tool {name!r} cannot take *args or **kwargs")
        if parameter.name not in hints:
            raise ContractError(f"{where}: tool {name!r}: {parameter.name!r} needs a type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        description = docs.get(parameter.name)
        if not description:
            raise ContractError(
                f"{where}: tool {name!r}: {parameter.name!r} needs a line in the docstring under `Args:`, "
                f"for example `{parameter.name}: what it means`: the model reads it"
            )
        # By alias: a parameter may have any name, also one that pydantic keeps for itself.
        fields[f"argument_{parameter.name}"] = (
            hints[parameter.name],
            pydantic.Field(default=default, description=description, alias=parameter.name),
        )
    if unknown := docs.keys() - {str(f.alias) for _, f in fields.values()}:
        raise ContractError(
            f"{where}: tool {name!r}: `Args:` explains {sorted(unknown)}, which it does not take"
        )
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return pydantic.create_model(f"{name}_arguments", __config__=config, **fields)
    except pydantic.errors.PydanticUserError as error:
        raise ContractError(f"{where}: tool {name!r}: {error.message}") from error


def _split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Google style: (what comes before `Args:`, parameter -> text)."""
    head, _, rest = doc.partition("\nArgs:\n")
    arguments: dict[str, str] = {}
    current = ""
    for line in rest.split("\n"):
        match = re.match(r"\s{2,4}(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
        if match:
            current = match[1]
            arguments[current] = match[2].strip()
        elif current and line.startswith("      "):
            arguments[current] += " " + line.strip()
        elif line.strip() and not line.startswith(" "):
            break
    return head.strip(), arguments
