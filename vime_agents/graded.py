"""What the graders of an episode were given, so that other graders can be given it later.

    what                                      where it is
    task, task_id                             among the tasks of the evaluation
    messages                                  in the episode's turns; here, where a wrapper changed them
    text, turn, counters, rewards of steps    here
    attributes that the author's class set    here, where they are plain; what is as the constructor left it
                                              is taken from a new env
    artifacts of a sandbox                    here, where the graders read them

What cannot be stored is named, so that whoever asks for it is refused it.
"""

from __future__ import annotations

import base64
import dis
import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, Self

from vime_agents.errors import ContractError, RecordError
from vime_agents.exact_json import decode, encode
from vime_agents.messages import Message

VERSION = 1

MAX_ATTRIBUTE_BYTES = 8192
"""Of an attribute's JSON."""
MAX_COMPARED = 1 << 18
"""Characters and elements of an attribute; a larger one would hold up the event loop."""
MAX_ARTIFACT_BYTES = 1 << 18
"""Of all artifacts of an episode; of more, none is stored."""

ARTIFACTS = "the artifacts"
"""Their name in `Graded.lost`; no attribute can have it."""

_IMMUTABLE = (str, bytes, int, float, complex, FunctionType, BuiltinFunctionType, type, re.Pattern)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_ALWAYS = ("stop", "terminated", "turn")
_NO_AUTHORS = ("vime_agents", "gymnasium", "typing", "builtins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """The end of one episode, as its graders saw it."""

    stop: str
    """What had ended it: done, max_turns, ...; empty: a wrapper, which cut it."""
    terminated: bool
    """Whether the env had ended it itself."""
    answer: str | None = None
    """What `finish` was given; None: the text to grade is the agent's last message."""
    turn: int
    messages: tuple[Message, ...] | None = None
    """As the env had them; None: as the episode's turns have them."""
    counters: Mapping[str, float] = field(default_factory=dict)
    earned: float | None = None
    """Rewards of all steps; None: the env gave none."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the author's class, by name; their values as `encode` makes them."""
    unchanged: tuple[str, ...] = ()
    """Those that are as the env's constructor had left them."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """What else there was -> why it is not stored."""
    assigned: tuple[str, ...] = ()
    """Attributes that the author's class assigns somewhere: of one that the episode does not have, it is
    known that nothing assigned it."""
    artifacts: Mapping[str, str] | None = None
    """Path -> content in base64; None: no grader read them, or `lost` has them."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable dict, without what is as by default."""
        usual = type(self)(stop="", terminated=False, turn=-1)
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {n: v for n, v in plain.items() if n in _ALWAYS or v != getattr(usual, n)}
        return {"version": VERSION} | {n: list(v) if isinstance(v, tuple) else v for n, v in kept.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises RecordError: another version, or not such a record."""
        if data.get("version") != VERSION:
            raise RecordError(f"what was graded has version {data.get('version')!r}, need {VERSION}")
        lists = ("messages", "unchanged", "assigned")
        values: dict[str, Any] = {n: tuple(v) if n in lists else v for n, v in data.items()}
        del values["version"]
        try:
            return cls(**values)
        except TypeError as error:
            raise RecordError(f"what was graded: {error}") from error


Fingerprint = str | tuple[Any] | None
"""Tells whether a value was changed: the hash of its JSON; itself, where nothing can change it; or none."""


def fingerprint(value: object) -> Fingerprint:
    """Equal ones are of equal values, but for None."""
    if is_large(value):
        return None
    text = exact_json(value)
    if text is not None:
        return hashlib.sha256(text.encode()).hexdigest()
    return (value,) if is_immutable(value) else None


def is_large(value: object) -> bool:
    """Whether it holds more than MAX_COMPARED; looks at no more of it than that."""
    left, inside = MAX_COMPARED, [value]
    while inside and left >= 0:
        part = inside.pop()
        left -= len(part) if isinstance(part, (str, bytes, *_CONTAINERS)) else 1
        if left >= 0 and isinstance(part, _CONTAINERS):
            inside += [*part, *part.values()] if isinstance(part, dict) else part
    return left < 0


def is_immutable(value: object) -> bool:
    """Whether nothing can change it: text, numbers, functions, classes, patterns, and tuples of them."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_immutable, value))
    return value is None or isinstance(value, _IMMUTABLE)


def stored_state(
    attributes: Mapping[str, object], initial: Mapping[str, Fingerprint]
) -> tuple[dict[str, Any], tuple[str, ...], dict[str, str]]:
    """(state, unchanged, lost) of a `Graded`; `initial`: what the constructor left."""
    state: dict[str, Any] = {}
    unchanged: list[str] = []
    lost: dict[str, str] = {}
    for name, value in attributes.items():
        if is_large(value):
            lost[name] = f"more than {MAX_COMPARED} characters and elements"
            continue
        text = exact_json(value)
        if initial.get(name) is not None and initial[name] == fingerprint(value):
            unchanged.append(name)
        elif text is None:
            which = "holds what JSON does not have" if type(value) in _CONTAINERS else "JSON does not have"
            lost[name] = f"a {type(value).__name__}, which {which}"
        elif len(text) > MAX_ATTRIBUTE_BYTES:
            lost[name] = f"{len(text)} bytes; at most {MAX_ATTRIBUTE_BYTES} are stored"
        else:
            state[name] = json.loads(text)
    return state, tuple(unchanged), lost


@cache
def assigned_names(cls: type, *, skip: str = "") -> frozenset[str]:
    """Attributes that the functions of a class assign, on whatever object; not those of this package.

    `skip`: name of a function that does not count.
    """
    found: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] not in _NO_AUTHORS:
            for name, member in vars(base).items():
                for code in _codes(member) if name != skip else ():
                    found |= _stores(code)
    return frozenset(found)


def _codes(member: object) -> Iterator[CodeType]:
    """Of a function, however it is wrapped: a method of any kind, a property, a tool, a reward."""
    parts = [getattr(member, name, None) for name in ("fget", "fset", "__func__", "graded_function")]
    for part in (member, *parts):
        code = getattr(inspect.unwrap(part), "__code__", None) if callable(part) else None
        if isinstance(code, CodeType):
            yield code


def _stores(code: CodeType) -> set[str]:
    stored = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return stored.union(*map(_stores, inner))


def exact_json(value: object) -> str | None:
    """The JSON of its `encode`; None when something else would come back: it holds an object."""
    try:
        text = json.dumps(encode(value), allow_nan=False)
        return text if _same(decode(json.loads(text)), value) else None
    except (ContractError, TypeError, ValueError, RecursionError):
        return None


def with_artifacts(graded: Graded, artifacts: Mapping[str, bytes]) -> Graded:
    """The record with what a grader read of the sandbox."""
    num_bytes = sum(map(len, artifacts.values()))
    encoded = {path: base64.b64encode(data).decode() for path, data in artifacts.items()}
    why = ""
    if num_bytes > MAX_ARTIFACT_BYTES:
        why = f"{num_bytes} bytes; at most {MAX_ARTIFACT_BYTES} are"
    elif graded.artifacts not in (None, encoded):
        why = "they were others each time that they were read"
    if why or ARTIFACTS in graded.lost:
        return replace(graded, artifacts=None, lost={ARTIFACTS: why, **graded.lost})
    return replace(graded, artifacts=encoded)


def decoded_artifacts(artifacts: Mapping[str, str]) -> dict[str, bytes]:
    """Path -> content, of those that a `Graded` has."""
    return {path: base64.b64decode(text) for path, text in artifacts.items()}


def _same(found: object, value: object) -> bool:
    """Equal, and of the same types all the way down: to Python, 1 is True and equals 1.0."""
    if type(found) is not type(value):
        return False
    if isinstance(found, dict) and isinstance(value, dict):
        return _same(list(found.items()), list(value.items()))
    if isinstance(found, (list, tuple)) and isinstance(value, (list, tuple)):
        return len(found) == len(value) and all(map(_same, found, value))
    if isinstance(found, (set, frozenset)) and isinstance(value, (set, frozenset)):
        return found == value and {type(part) for part in found} == {type(part) for part in value}
    return found == value
