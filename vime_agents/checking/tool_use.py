"""Checks of tools: what the model is told about them, what it may call them with, whether gold uses them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vime_agents import messages as msg
from vime_agents.checking.drive import Hung
from vime_agents.checking.kit import DoesNotApply, Session, check
from vime_agents.checking.policies import FixedReplies
from vime_agents.env import AgentEnv, ToolEnv
from vime_agents.errors import EpisodeError, ToolError
from vime_agents.policies.scripted import ScriptedPolicy

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}

Schema = Mapping[str, Any]


async def schemas_of(session: Session) -> list[dict[str, Any]]:
    """The tools as the model is told in an episode. Raises DoesNotApply without tools."""
    env = session.make()
    try:
        await env.areset(seed=0)
        schemas = list(env.tool_schemas)
    finally:
        await session.close(env)
    if not schemas:
        raise DoesNotApply("the env has no tools")
    return schemas


@check(
    "tool-schemas",
    family="tools",
    fix="@tool makes the schema from type hints and a Google-style docstring with an Args: section",
)
async def tool_schemas(session: Session) -> None:
    """Each tool has a name that every provider takes, a description, and a type for each parameter."""
    names: set[str] = set()
    for schema in await schemas_of(session):
        function = schema.get("function") if isinstance(schema, Mapping) else None
        if not isinstance(function, Mapping) or schema.get("type") != "function":
            session.find(f"not {{'type': 'function', 'function': ...}}: {schema!r:.200}")
            continue
        name = function.get("name")
        for problem in _problems(function):
            session.find(f"tool {name!r}: {problem}", where=_where(session, str(name)))
        for problem, parameter in _undocumented(function):
            session.find(
                f"tool {name!r}: {problem}",
                where=_where(session, str(name)),
                severity="warning",
                fix=f"add '{parameter}: what it is' to the docstring's Args: section",
            )
        if name in names:
            session.find(f"two tools are called {name!r}")
        names.add(str(name))


def _problems(function: Schema) -> Iterator[str]:
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield "the name must have 1 to 64 of a-z, A-Z, 0-9, _ and -"
    if not str(function.get("description") or "").strip():
        yield "no description"
    try:
        json.dumps(function, allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"the schema is no JSON: {error}"
        return
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        yield f"parameters must be an object's schema, got {parameters!r:.100}"
        return
    properties = parameters.get("properties", {})
    for parameter, schema in properties.items():
        if not _has_type(schema, parameters):
            yield f"parameter {parameter!r} has no type: {schema!r:.100}"
    for parameter in parameters.get("required", ()):
        if parameter not in properties:
            yield f"{parameter!r} is required, but no parameter"


def _undocumented(function: Schema) -> Iterator[tuple[str, str]]:
    parameters = function.get("parameters")
    properties = parameters.get("properties", {}) if isinstance(parameters, Mapping) else {}
    for parameter, schema in properties.items():
        if not resolved(schema, parameters or {}).get("description") and not schema.get("description"):
            yield f"parameter {parameter!r} has no description", parameter


def resolved(schema: Schema, root: Schema) -> Schema:
    """`schema`, with a reference into `root` followed."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    target: Any = root
    for part in reference[2:].split("/"):
        target = target.get(part, {}) if isinstance(target, Mapping) else {}
    return target


def _has_type(schema: Any, root: Schema) -> bool:
    if not isinstance(schema, Mapping):
        return False
    schema = resolved(schema, root)
    kinds = schema.get("type")
    if kinds is not None:
        return all(kind in _TYPES for kind in ([kinds] if isinstance(kinds, str) else kinds))
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if branches:
        return all(_has_type(branch, root) for branch in branches)
    return "enum" in schema or "const" in schema


def _where(session: Session, name: str) -> str | None:
    tool = next((v for v in _attributes(session.cls) if getattr(v, "name", None) == name), None)
    code = getattr(getattr(tool, "function", None), "__code__", None)
    return None if code is None else session.author.place(code, code.co_firstlineno)


def _attributes(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        yield from vars(base).values()


@check(
    "tool-json-schema",
    family="tools",
    needs=("plays", "tool-schemas"),
    fix="see https://json-schema.org/draft/2020-12: the message names the keyword",
)
async def tool_json_schema(session: Session) -> None:
    """Each tool's parameters are valid JSON Schema, draft 2020-12 (needs the package jsonschema)."""
    schemas = await schemas_of(session)
    if importlib.util.find_spec("jsonschema") is None:
        raise DoesNotApply("the package jsonschema is not installed")
    from jsonschema import Draft202012Validator, SchemaError

    for schema in schemas:
        function = schema["function"]
        try:
            Draft202012Validator.check_schema(function["parameters"])
        except SchemaError as error:
            session.find(
                f"tool {function['name']!r}, at {error.json_path}: {error.message}"[:400],
                where=_where(session, function["name"]),
            )


# ----------------------------------------------------------------------------------------- calling them


class RecordingTool:
    """Stands in front of a tool: notes that it was called, and what it raised."""

    def __init__(self, tool: Any, calls: list[str], errors: list[Exception]) -> None:
        self._tool, self._calls, self._errors = tool, calls, errors
        self.name, self.schema = tool.name, tool.schema

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """The tool's own."""
        self._calls.append(self.name)
        try:
            return await self._tool.call(*args, **kwargs)
        except Exception as error:
            self._errors.append(error)
            raise


class Recorded:
    """A policy in whose episodes every tool is recorded."""

    exact_tokens = False

    def __init__(self, policy: Any, *, tool_s: float | None = None) -> None:
        """`tool_s`: the env's `tool_timeout_s` from the first turn on."""
        self.policy, self.name, self.tool_s = policy, policy.name, tool_s
        self.calls: list[str] = []
        self.errors: list[Exception] = []

    def begin(self, conversation: Any, env: Any) -> None:
        """Put a recorder before each tool: `setup` has added the last of them."""
        for name, tool in env.tools.items():
            env.tools[name] = RecordingTool(tool, self.calls, self.errors)
        if self.tool_s is not None:
            env.tool_timeout_s = min(self.tool_s, env.tool_timeout_s)
        begin = getattr(self.policy, "begin", None)
        if begin is not None:
            begin(conversation, env)

    async def act(self, conversation: Any, **kwargs: Any) -> Any:
        """The policy's."""
        return await self.policy.act(conversation, **kwargs)

    async def aclose(self) -> None:
        """Nothing to release."""


def _must_be_tool_env(session: Session) -> None:
    if not issubclass(session.cls, ToolEnv):
        raise DoesNotApply("the env is no ToolEnv")


@check(
    "tools-used",
    family="tools",
    needs=("plays", "gold"),
    explained_by=("tool-schemas",),
    fix="let `gold` call every tool on some task, or take away the tool that nobody needs",
)
async def tools_used(session: Session) -> None:
    """The gold replies of several tasks call every tool, and without an error."""
    _must_be_tool_env(session)
    names = {schema["function"]["name"] for schema in await schemas_of(session)}
    if not session.has_gold:
        raise DoesNotApply("the env has no `gold`")
    used: set[str] = set()
    for task in await session.task_indices():
        policy = Recorded(ScriptedPolicy("gold"))
        session.must_be_possible(await session.play(policy, seed=task, task=task))
        used.update(policy.calls)
        for error in policy.errors[:1]:
            session.find(
                f"task {task}: a gold call raises {type(error).__name__}: {error}"[:400],
                where=session.author.line_of(error),
                fix="make the tool serve the call, or correct it in `gold`",
            )
            return
    for name in sorted(names - used):
        session.find(f"no gold reply calls {name!r}", where=_where(session, name), severity="warning")


@check(
    "tool-arguments",
    family="tools",
    explained_by=("first-action",),
    fix="raise ToolError with a sentence that the model understands; EnvFault is for infrastructure alone",
)
async def tool_arguments(session: Session) -> None:
    """Bad arguments come back to the model as a tool message: no failed episode, and no raw exception."""
    _must_be_tool_env(session)
    for schema in await schemas_of(session):
        function = schema["function"]
        for label, arguments in hostile_arguments(
            function["parameters"], session.scale.huge_characters // 10
        ):
            reply = msg.assistant("", [msg.tool_call(function["name"], arguments, "call-0")])
            policy = Recorded(FixedReplies([reply]))
            trace = await session.play(policy, max_steps=1)
            called = f"{function['name']} with {label}"
            fault = session.fault(trace)
            if fault is not None:
                session.find(f"{called} makes the episode fail: {fault}", where=trace.where)
                return
            raised = [e for e in policy.errors if not isinstance(e, (ToolError, TimeoutError, EpisodeError))]
            for error in raised:
                session.find(
                    f"{called} raises {type(error).__name__}: {error}"[:300],
                    where=session.author.line_of(error),
                    severity="warning",
                )
                return


def hostile_arguments(parameters: Schema, huge: int) -> Iterator[tuple[str, str]]:
    """(label, arguments as JSON text), for a tool of these parameters."""
    yield from (
        ("arguments that are cut off", '{"x": '),
        ("no arguments", ""),
        ("arguments that are null", "null"),
        ("a list for arguments", "[]"),
        ("an argument that it does not take", '{"no_such_argument": 1}'),
    )
    good = {name: sample(schema, parameters) for name, schema in parameters.get("properties", {}).items()}
    for name, value in good.items():
        wrong: list[tuple[str, Any]] = [("null", None), ("an object", {"a": 1}), ("a list of lists", [[]])]
        if isinstance(value, str):
            wrong += [
                ("an empty text", ""),
                ("NUL", "a\x00b"),
                ("a lone surrogate", "\ud800"),
                ("emojis", "🙂" * 50),
                ("a path out of the folder", "../../../../etc/passwd"),
                (f"{huge} characters", "a" * huge),
            ]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            wrong += [("0", 0), ("-1", -1), ("10^30", 10**30), ("NaN", float("nan"))]
        for label, bad in wrong:
            yield f"{name} = {label}", json.dumps({**good, name: bad})


def sample(schema: Schema, root: Schema) -> Any:
    """A value that fits."""
    schema = resolved(schema, root)
    for key in ("default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    branches = [b for b in schema.get("anyOf") or schema.get("oneOf") or () if b.get("type") != "null"]
    if branches:
        return sample(branches[0], root)
    properties: Mapping[str, Any] = schema.get("properties", {})
    values: dict[str, Any] = {
        "string": "a",
        "integer": schema.get("minimum", 1),
        "number": schema.get("minimum", 1.0),
        "boolean": True,
        "array": [],
        "object": {k: sample(v, root) for k, v in properties.items() if k in schema.get("required", ())},
    }
    return values.get(schema.get("type", "null"))


# --------------------------------------------------------------------------------------- endless programs

ENDLESS: Sequence[str] = (
    "while True: pass",
    "```python\nwhile True:\n    pass\n```",
    "while :; do :; done",
    "9**9**9**9",
)


@check(
    "endless-code",
    family="limits",
    explained_by=("hostile-text",),
    fix="run a model's code in `await self.sandbox()` with a timeout_s: a thread cannot be ended",
)
async def endless_code(session: Session) -> None:
    """Endless code, as a reply or a tool's argument, is stopped by a limit, and nothing goes on running."""
    replies: list[tuple[str, Any]] = [(f"the reply {text!r}", text) for text in ENDLESS]
    if issubclass(session.cls, ToolEnv):
        replies += await _endless_calls(session)
    for label, reply in replies:
        policy: Any = FixedReplies([reply])
        if issubclass(session.cls, ToolEnv):
            policy = Recorded(policy, tool_s=session.scale.tool_s)
        trace = await session.play(policy, max_steps=1)
        if isinstance(trace.error, Hung):
            session.find(f"{label}: {trace.error}", where=trace.where)
            return
        running = session.author.lines_in_threads()
        if running:
            session.hung = True  # nothing can end it
            session.find(f"{label}: the call was answered, but its thread runs on", where=running[0])
            return


async def _endless_calls(session: Session) -> list[tuple[str, Any]]:
    env: AgentEnv = session.make()
    try:
        await env.areset(seed=0)
        schemas = list(env.tool_schemas)
    finally:
        await session.close(env)
    found: list[tuple[str, Any]] = []
    for schema in schemas:
        function = schema["function"]
        parameters = function["parameters"]
        good = {name: sample(part, parameters) for name, part in parameters.get("properties", {}).items()}
        for name, value in good.items():
            if isinstance(value, str):
                for text in ENDLESS:
                    call = msg.tool_call(function["name"], {**good, name: text}, "call-0")
                    found.append((f"{function['name']}({name}={text!r})", msg.assistant("", [call])))
    return found
