"""`--vllm-*` flags: every flag of vLLM's own server under a prefix, checked by name without importing vLLM.

Importing vLLM takes ten seconds and needs its device; its flags are read off its source instead.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vime_agents.errors import ConfigError, did_you_mean

PREFIX = "--vllm-"

OWNED = {
    "served-model-name": "engines are asked by their own name",
    "host": "engines listen on their own host",
    "port": "a free port is taken",
    "logprobs-mode": "log-probs are always those of the distribution that was sampled",
    "worker-extension-cls": "weight sync needs it",
    "weight-transfer-config": "it follows from how weights are synced",
    "enable-scale-out": "it is always on",
}
"""Flags that vime-agents sets itself -> why. Commands add those that a flag of their own sets."""

_FIELD_CLASSES = ("BaseFrontendArgs", "FrontendArgs")
"""Classes of vLLM whose every field is a flag."""

Value = bool | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """What the installed vLLM accepts."""

    names: frozenset[str]
    """Without dashes in front: `max-num-seqs`."""
    booleans: frozenset[str]
    """Those that take no value and have a `no-` form."""


@cache
def known_flags() -> KnownFlags | None:
    """Flags of the installed vLLM; None when there is none, or its source is laid out in an unknown way."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    sources = [
        root / "engine/arg_utils.py",
        *(root / "entrypoints").glob("*/cli_args.py"),
    ]
    trees = [ast.parse(p.read_text(encoding="utf-8")) for p in sources if p.is_file()]
    if len(trees) < 2:
        return None
    return read_flags(trees)


def read_flags(trees: Sequence[ast.Module]) -> KnownFlags:
    """Flags in the source of vLLM's argument modules: `add_argument("--x")` calls and dataclass fields."""
    names: set[str] = set()
    booleans: set[str] = set()
    for node in (n for tree in trees for n in ast.walk(tree)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            flags = _long_flags(node)
            names.update(flags)
            actions = [k.value for k in node.keywords if k.arg == "action"]
            if any(isinstance(a, ast.Constant) and a.value == "store_true" for a in actions):
                booleans.update(flags)
        elif isinstance(node, ast.ClassDef):
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
            for field in fields:
                flag = field.target.id.replace("_", "-")  # type: ignore[union-attr]
                if node.name in _FIELD_CLASSES:
                    names.add(flag)
                if node.name in (*_FIELD_CLASSES, "EngineArgs", "AsyncEngineArgs") and _is_bool(field):
                    booleans.add(flag)
    return KnownFlags(frozenset(names), frozenset(booleans & names))


def _long_flags(call: ast.Call) -> list[str]:
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return [t[2:].replace("_", "-") for t in texts if t.startswith("--")]


def _is_bool(field: ast.AnnAssign) -> bool:
    words = {n.id for n in ast.walk(field.annotation) if isinstance(n, ast.Name)}
    # `bool | str` takes a value or none: it is not checked.
    return "bool" in words and "str" not in words


def take_vllm_flags(argv: Sequence[str], own: frozenset[str]) -> tuple[list[str], dict[str, Value]]:
    """Split argv into (the rest, vLLM's flags without the prefix, unchecked).

    Args:
        argv: arguments as typed.
        own: flags that begin with `--vllm-` but are ours.

    Raises:
        ConfigError: a flag given twice.
    """
    rest: list[str] = []
    found: dict[str, Value] = {}
    position = 0
    while position < len(argv):
        flag, equals, inline = argv[position].partition("=")
        position += 1
        if not flag.startswith(PREFIX) or flag in own:
            rest.append(argv[position - 1])
            continue
        values = [inline] if equals else []
        while not equals and position < len(argv) and not argv[position].startswith("--"):
            values.append(argv[position])
            position += 1
        name, value = flag.removeprefix(PREFIX), values[0] if len(values) == 1 else tuple(values) or True
        if name in found:
            raise ConfigError(f"{flag}: given twice; give all its values after one flag")
        found[name] = value
    return rest, found


def check_vllm_flags(values: Mapping[str, Any], owned: Mapping[str, str]) -> dict[str, Value]:
    """Checked flags by name (dashes, no prefix); numbers become text, mappings JSON text.

    `no-x` becomes `x: False`.

    Args:
        values: as flags, a YAML file or a call gave them.
        owned: flags that are set elsewhere -> why, or what to give instead.

    Raises:
        ConfigError: unknown, owned, a missing value, or a value for a switch.
    """
    return dict(_check(name.replace("_", "-"), value, owned) for name, value in values.items())


def _check(name: str, value: Any, owned: Mapping[str, str]) -> tuple[str, Value]:
    known = known_flags()
    flag = PREFIX + name
    if name in owned:
        raise ConfigError(f"{flag}: set by vime-agents itself: {owned[name]}")
    if name.startswith("no-") and (known is None or name[3:] in known.booleans):
        if value is not True:
            raise ConfigError(f"{flag}: takes no value, got {value!r}")
        name, value = name[3:], False
    text = _as_text(flag, value)
    if known is None:
        return name, text
    if name not in known.names:
        hint = did_you_mean(name, known.names - set(owned), PREFIX + "{}")
        raise ConfigError(f"unknown flag {flag}: the installed vLLM has no --{name}.{hint}")
    is_switch = isinstance(text, bool)
    if name in known.booleans and not is_switch:
        raise ConfigError(f"{flag}: takes no value, got {value!r}; write {flag} or {PREFIX}no-{name}")
    return name, text


def _as_text(flag: str, value: Any) -> Value:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, (list, tuple)) and value:
        return tuple(str(v) for v in value)
    raise ConfigError(f"{flag}: needs a value, got {value!r}")


def vllm_argv(values: Mapping[str, Value]) -> tuple[str, ...]:
    """The flags as vLLM's server reads them."""
    argv: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            argv.append(f"--{name}" if value else f"--no-{name}")
        else:
            argv += [f"--{name}", *([value] if isinstance(value, str) else value)]
    return tuple(argv)
