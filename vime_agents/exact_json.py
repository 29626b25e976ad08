"""Values <-> JSON without loss: also tuples, sets, and dictionaries with keys of any kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vime_agents.errors import ContractError


def encode(value: Any) -> Any:
    """As JSON has it; what JSON does not tell apart is marked: `{"!tuple": [1, 2]}`, `!set`, `!dict`.

    Raises:
        ContractError: it holds something else.
    """
    if isinstance(value, tuple):
        return {"!tuple": [encode(part) for part in value]}
    if isinstance(value, (set, frozenset)):
        mark = "!set" if isinstance(value, set) else "!frozenset"
        return {mark: sorted((encode(part) for part in value), key=json.dumps)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("!") for key in value):
            return {key: encode(part) for key, part in value.items()}
        return {"!dict": [[encode(key), encode(part)] for key, part in value.items()]}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ContractError(f"it holds a {type(value).__name__}, which JSON does not have: {value!r:.200}")


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    match list(value.items()):
        case [("!tuple", parts)]:
            return tuple(map(decode, parts))
        case [("!set", parts)]:
            return set(map(decode, parts))
        case [("!frozenset", parts)]:
            return frozenset(map(decode, parts))
        case [("!dict", pairs)]:
            return {decode(key): decode(part) for key, part in pairs}
    return {key: decode(part) for key, part in value.items()}
