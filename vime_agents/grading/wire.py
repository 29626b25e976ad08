"""What caller, keeper and grader say to each other: a size of four bytes, then that much JSON."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

SIZE_BYTES = 4
MAX_ANSWER_BYTES = 1 << 20
"""A longer answer is no grade."""
_SAID_BY_GRADERS = ("memory", "unscorable", "raised")


def frame(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent.

    Raises:
        TypeError, ValueError: it holds what JSON does not have.
    """
    text = json.dumps(message, default=_number).encode()
    return len(text).to_bytes(SIZE_BYTES, "big") + text


def find_function(module: str, name: str) -> Callable[..., Any] | None:
    """The function `name` of a module, or of the reward component of that name; None: no such thing.

    Raises:
        ImportError, or whatever else importing the module raises.
    """
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return getattr(found, "graded_function", found)


def checked_answer(text: bytes) -> dict[str, Any]:
    """A grader's answer, if it is one."""
    try:
        answer = json.loads(text)
        if answer["kind"] == "value":
            return {"kind": "value", "value": answer["value"]}
        if answer["kind"] in _SAID_BY_GRADERS:
            return {"kind": answer["kind"], "detail": str(answer.get("detail", ""))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        kind = "not JSON of the right shape"
    else:
        kind = f"of the kind {answer['kind']!r:.80}"
    return {"kind": "crashed", "detail": f"its answer is {kind}"}


def _number(value: object) -> Any:
    item = getattr(value, "item", None)  # a NumPy scalar
    if item is None:
        raise TypeError(f"a grader returns numbers, text, lists and dicts, got a {type(value).__name__}")
    return item()
