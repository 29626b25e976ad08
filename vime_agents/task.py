"""Tasks and where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vime_agents.errors import ConfigError, DatasetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem instance."""

    id: str
    inputs: Mapping[str, Any]
    """JSON-serialisable; what the env's hooks read as `self.task`."""
    split: str = "train"
    metadata: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class TaskSet(Protocol):
    """An indexed collection of tasks. Index -> task is a pure function, so that order is reproducible."""

    name: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Task: ...


def content_id(inputs: Mapping[str, Any]) -> str:
    """A stable id of a task's content."""
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ListTaskSet:
    """Tasks held in memory."""

    def __init__(self, rows: Iterable[Mapping[str, Any] | Task], *, name: str, split: str) -> None:
        self.name = name
        self._tasks = [
            row
            if isinstance(row, Task)
            else Task(id=str(row.get("id", content_id(row))), inputs=dict(row), split=split)
            for row in rows
        ]
        if not self._tasks:
            raise ConfigError(f"task set {name!r} ({split}) is empty")

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int, /) -> Task:
        return self._tasks[index]


class ProceduralTaskSet:
    """Tasks made by a function of (seed, index); `size` bounds the index."""

    def __init__(
        self,
        make: Callable[[np.random.Generator], Mapping[str, Any]],
        *,
        name: str,
        split: str,
        seed: int,
        size: int,
    ) -> None:
        self.name, self.split, self.seed, self.size = name, split, seed, size
        self._make = make

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(index)
        # The split is part of the seed: train and held-out streams never coincide by construction.
        salt = int.from_bytes(hashlib.sha256(self.split.encode()).digest()[:4], "big")
        rng = np.random.default_rng([self.seed, salt, index])
        return Task(id=f"{self.split}-{index}", inputs=dict(self._make(rng)), split=self.split)


def load_jsonl(path: str | Path, *, required: Sequence[str] = (), split: str = "train") -> ListTaskSet:
    """Read tasks from a JSON Lines file.

    Raises:
        DatasetError: the file, the line and what is wrong with it.
    """
    path = Path(path)
    if not path.is_file():
        raise DatasetError(f"{path}: no such file")
    rows: list[Mapping[str, Any]] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:  # JSON, or UTF-8
                raise DatasetError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DatasetError(f"{path}:{number}: a row is a JSON object, got {line[:80]!r}")
            for key in required:
                if key not in row:
                    raise DatasetError(f"{path}:{number}: no key {key!r}; the row has {sorted(row)}")
            rows.append(row)
    if not rows:
        raise DatasetError(f"{path}: no rows")
    return ListTaskSet(rows, name=path.name, split=split)


def shuffled_indices(size: int, *, seed: int, start: int = 0) -> Iterator[int]:
    """Endless task order: each epoch is its own permutation of range(size); begins at position `start`.

    A pure function of (size, seed, position): a resumed run sees the same order.
    """
    epoch, offset = divmod(start, size)
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(size)
        yield from (int(i) for i in order[offset:])
        epoch, offset = epoch + 1, 0
