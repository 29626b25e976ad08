"""Gymnasium spaces for conversations. Samples are a pure function of the space's seed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from vime_agents.messages import Message, is_message

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,+-*/()=\n"


class Messages(gymnasium.Space[tuple[Message, ...]]):
    """Tuples of chat messages: the ones that are new since the agent's last action."""

    def __init__(self, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[Message, ...]:
        """One to three short user or tool messages."""
        count = int(self.np_random.integers(1, 4))
        roles = ("system", "user", "tool")
        return tuple(
            {"role": roles[int(self.np_random.integers(3))], "content": _text(self.np_random)}
            for _ in range(count)
        )

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple or list of valid messages."""
        return isinstance(x, (tuple, list)) and all(is_message(m) for m in x)

    def to_jsonable(self, sample_n: Any) -> list[Any]:
        """Messages are JSON already."""
        return [list(s) for s in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[tuple[Message, ...]]:
        """The inverse of `to_jsonable`."""
        return [tuple(s) for s in sample_n]

    def __repr__(self) -> str:
        return "Messages()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    __hash__ = None  # type: ignore[assignment]


class Reply(gymnasium.Space[str | Message]):
    """What a policy answers: text, or an assistant message (with tool calls, if any)."""

    def __init__(self, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str | Message:
        """A short text."""
        return _text(self.np_random)

    def contains(self, x: Any) -> bool:
        """Whether `x` is text or an assistant message."""
        return isinstance(x, str) or (is_message(x) and x["role"] == "assistant")

    def to_jsonable(self, sample_n: Any) -> list[Any]:
        """Replies are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str | Message]:
        """The inverse of `to_jsonable`."""
        return list(sample_n)

    def __repr__(self) -> str:
        return "Reply()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reply)

    __hash__ = None  # type: ignore[assignment]


def _text(rng: np.random.Generator) -> str:
    length = int(rng.integers(1, 33))
    return "".join(_ALPHABET[i] for i in rng.integers(0, len(_ALPHABET), length))
