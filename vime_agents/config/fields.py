"""One field of a config class -> one `Option`: its flag, its YAML key, its help and its check.

The dataclasses are the only table. A field's annotation says what values are allowed, its docstring is the
help text, its section is the class that declares it.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
import types
import typing
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from vime_agents.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Allowed numbers."""

    low: float = -math.inf
    high: float = math.inf
    above_low: bool = False
    """True excludes `low` itself."""

    def contains(self, value: float) -> bool:
        """Whether `value` is allowed."""
        return (value > self.low if self.above_low else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'>' if self.above_low else '>='} {self.low:g}"
        high = "" if self.high == math.inf else f"<= {self.high:g}"
        return " and ".join(part for part in (low, high) if part)


@dataclass(frozen=True, slots=True)
class MayChange:
    """Marks a field that a resumed run may set to another value than the run before."""


PositiveInt = Annotated[int, Bounds(1)]
NonNegativeInt = Annotated[int, Bounds(0)]
PositiveFloat = Annotated[float, Bounds(0, above_low=True)]
NonNegativeFloat = Annotated[float, Bounds(0)]
Probability = Annotated[float, Bounds(0, 1, above_low=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting."""

    name: str
    section: str
    """Title of its group in the help."""
    help: str
    kind: type
    """bool, int, float or str."""
    optional: bool
    """Whether None is a value."""
    choices: tuple[str, ...]
    """The allowed values of a str; empty: any."""
    bounds: Bounds
    default: Any
    """`dataclasses.MISSING` for a required one."""
    may_change: bool
    """Whether a resumed run may change it."""

    @property
    def flag(self) -> str:
        """The flag, with its dashes."""
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether the user must give it."""
        return self.default is MISSING

    def parse(self, value: Any) -> Any:
        """The checked value of what a flag (text), a YAML file or a call gave.

        Raises:
            ConfigError: naming the flag, the value seen and what is allowed.
        """
        if value is None and self.optional:
            return None
        number = self._convert(value)
        if self.choices and number not in self.choices:
            raise self._error(value, f"one of {', '.join(self.choices)}")
        if self.kind in (int, float) and not self.bounds.contains(number):
            raise self._error(value, f"{self._kind_name()} {self.bounds}")
        return number

    def _convert(self, value: Any) -> Any:
        if self.kind is bool or isinstance(value, bool):
            # YAML 1.1 reads yes/no/on/off as booleans already; texts stay an error.
            if self.kind is not bool or not isinstance(value, bool):
                raise self._error(value, self._kind_name())
            return value
        if self.kind is str:
            if not isinstance(value, str):
                raise self._error(value, f"{self._kind_name()}; in YAML, quote it")
            return value
        # Text is converted here too: YAML 1.1 reads `1e-6` as a string.
        if not isinstance(value, (int, float, str)):
            raise self._error(value, self._kind_name())
        try:
            number = self.kind(value)
        except (ValueError, OverflowError) as error:
            raise self._error(value, self._kind_name()) from error
        if not math.isfinite(number) or (isinstance(value, float) and number != value):
            raise self._error(value, self._kind_name())
        return number

    def _kind_name(self) -> str:
        return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[self.kind]

    def _error(self, value: Any, allowed: str) -> ConfigError:
        return ConfigError(f"{self.flag}: must be {allowed}, got {value!r}")


@cache
def options_of(cls: type) -> dict[str, Option]:
    """Name -> Option of every field of a config class, section by section, in the order of the source."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    found: dict[str, Option] = {}
    for section in [*cls.__mro__[1:], cls]:
        docs = _field_docs(section.__module__).get(section.__name__, {})
        for name in getattr(section, "__annotations__", {}):
            if name not in fields or name in found or fields[name].metadata.get("passthrough"):
                continue
            title = (section.__doc__ or section.__name__).split("\n", 1)[0].rstrip(".")
            found[name] = _option(name, title, docs[name], hints[name], fields[name])
    return found


def _option(name: str, section: str, help_text: str, hint: Any, field: dataclasses.Field[Any]) -> Option:
    bounds, may_change, optional, choices = Bounds(), False, False, ()
    while typing.get_origin(hint) in (Annotated, types.UnionType, typing.Union):
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
            bounds = next((m for m in marks if isinstance(m, Bounds)), bounds)
            may_change = may_change or any(isinstance(m, MayChange) for m in marks)
        else:
            optional = True
            (hint,) = (a for a in typing.get_args(hint) if a is not type(None))
    if typing.get_origin(hint) is Literal:
        hint, choices = str, typing.get_args(hint)
    return Option(
        name=name,
        section=section,
        help=help_text,
        kind=hint,
        optional=optional,
        choices=choices,
        bounds=bounds,
        default=field.default,
        may_change=may_change,
    )


@cache
def _field_docs(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the docstring under it. Python drops them at run time, so the source is read."""
    path = getattr(sys.modules[module], "__file__", None)
    if path is None:
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs = found.setdefault(node.name, {})
        for field, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                doc = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
                docs[field.target.id] = " ".join(doc.split())
    return found
