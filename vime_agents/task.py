"""Tasks and where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from vime_agents.errors import ConfigError


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
    """A stable id of a task's content; of what is not JSON, the id is that of its text."""
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ListTaskSet:
    """Tasks held in memory. Rows of equal content get the ids x, x-2, x-3."""

    def __init__(self, rows: Iterable[Mapping[str, Any] | Task], *, name: str, split: str) -> None:
        self.name = name
        self._tasks: list[Task] = []
        seen: dict[str, int] = {}
        for row in rows:
            task_id = row.id if isinstance(row, Task) else str(row.get("id", content_id(row)))
            n = seen[task_id] = seen.get(task_id, 0) + 1
            if n > 1 and (isinstance(row, Task) or "id" in row):
                raise ConfigError(f"task set {name!r} ({split}): two tasks have the id {task_id!r}")
            unique = task_id if n == 1 else f"{task_id}-{n}"
            task = row if isinstance(row, Task) else Task(id=unique, inputs=dict(row), split=split)
            self._tasks.append(task)
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


def index_of(tasks: TaskSet, task_id: str) -> int | None:
    """Index of the first task with this id, or None. Sets that know their ids do not read every task."""
    known = getattr(tasks, "index_of", None)
    if known is not None:
        return known(task_id)
    return next((index for index in range(len(tasks)) if tasks[index].id == task_id), None)


def shuffled_indices(size: int, *, seed: int, start: int = 0) -> Iterator[int]:
    """Endless task order: each epoch is its own permutation of range(size); begins at position `start`.

    A pure function of (size, seed, position): a resumed run sees the same order.
    """
    epoch, offset = divmod(start, size)
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(size)
        yield from (int(i) for i in order[offset:])
        epoch, offset = epoch + 1, 0
