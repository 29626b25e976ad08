"""Task sets made of other task sets: a task keeps its id wherever it stands.

```
sliced(tasks, 10, 20)   limited(tasks, 100)   shuffled(tasks, seed=1)
split_by_id(tasks, {"train": 0.9, "test": 0.1})
MixedTaskSet({"easy": (a, 3), "hard": (b, 1)})
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ConfigError
from vime_agents.task import Task, TaskSet, index_of
from vime_agents.tasks.rows import id_digest


class SubsetTaskSet:
    """Some tasks of another set, in an order of their own."""

    def __init__(self, tasks: TaskSet, indices: Sequence[int] | NDArray[np.integer], *, name: str) -> None:
        if len(indices) == 0:
            raise ConfigError(f"task set {name!r} is empty; {tasks.name!r} has {len(tasks)} tasks")
        self.name, self._tasks, self._indices = name, tasks, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._tasks[int(self._indices[index])]

    def id_digests(self) -> NDArray[np.uint64]:
        """See IndexedTaskSet."""
        return id_digests(self._tasks)[np.asarray(self._indices)]


class MappedTaskSet:
    """Another set's tasks, each changed by a function when it is asked for."""

    def __init__(self, tasks: TaskSet, change: Callable[[Task], Task]) -> None:
        self.name, self._tasks, self._change = tasks.name, tasks, change

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int, /) -> Task:
        return self._change(self._tasks[index])


class ConcatenatedTaskSet:
    """One set after the other, as one. A task whose content was there before gets the id x-2, x-3, ..."""

    def __init__(self, parts: Sequence[TaskSet], *, name: str) -> None:
        """Join `parts`.

        Raises:
            ConfigError: no parts, or two rows with the same `id` of their own.
        """
        if not parts:
            raise ConfigError(f"task set {name!r} is empty: it has no parts")
        self.name, self._parts = name, list(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self._repeats = self._find_repeats()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int, /) -> Task:
        task = self._at(index)
        n = self._repeats.get(index)
        return task if n is None else replace(task, id=f"{task.id}-{n}")

    def id_digests(self) -> NDArray[np.uint64]:
        """See IndexedTaskSet."""
        return np.concatenate([id_digests(part) for part in self._parts])

    def _at(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part][index - (int(self._ends[part - 1]) if part else 0)]

    def _find_repeats(self) -> dict[int, int]:
        digests = self.id_digests()
        order = np.argsort(digests, kind="stable")
        ordered = digests[order]
        seen: dict[str, int] = {}
        repeats: dict[int, int] = {}
        equal = ordered[1:] == ordered[:-1]
        for at in np.flatnonzero(np.concatenate([equal, [False]]) | np.concatenate([[False], equal])):
            index = int(order[at])
            task = self._at(index)
            n = seen[task.id] = seen.get(task.id, 0) + 1
            if n > 1 and "id" in task.inputs:
                raise ConfigError(f"{self.name}: two parts have a task with the id {task.id!r}")
            if n > 1:
                repeats[index] = n
        return repeats


class MixedTaskSet:
    """Several sets in given proportions, which hold in every stretch from the start, to within one task.

    A part that is used up begins again. Ids are `part/id`; the order within a part is its own.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[TaskSet, float]],
        *,
        name: str = "mix",
        size: int | None = None,
    ) -> None:
        """Mix `parts`: name -> (tasks, weight).

        Args:
            parts: weights are relative to each other.
            name: of the mix.
            size: number of tasks; None: as many as there are before one would come twice.

        Raises:
            ConfigError: no parts, or a weight that is not above 0.
        """
        if not parts:
            raise ConfigError(f"mix {name!r} has no parts")
        for part, (_, weight) in parts.items():
            if not 0 < weight < float("inf"):
                raise ConfigError(f"mix {name!r}: the weight of {part!r} must be > 0, got {weight!r}")
        self.name, self._names = name, list(parts)
        self._parts = [tasks for tasks, _ in parts.values()]
        weights = np.asarray([weight for _, weight in parts.values()], np.float64)
        shares = weights / weights.sum()
        self._part, self._nth = _interleave(shares, size or self._size_without_repeats(shares))

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = int(self._part[index])
        tasks = self._parts[part]
        task = tasks[int(self._nth[index]) % len(tasks)]
        return replace(task, id=f"{self._names[part]}/{task.id}")

    def index_of(self, task_id: str) -> int | None:
        """Index of the first task with this id, or None."""
        part_name, _, inner = task_id.partition("/")
        if part_name not in self._names:
            return None
        part = self._names.index(part_name)
        nth = index_of(self._parts[part], inner)
        wanted = -1 if nth is None else nth
        found = np.flatnonzero((self._part == part) & (self._nth == wanted))
        return int(found[0]) if found.size else None

    def _size_without_repeats(self, shares: NDArray[np.float64]) -> int:
        lengths = [len(tasks) for tasks in self._parts]
        size = max(1, int(min(n / share for n, share in zip(lengths, shares, strict=True))) + len(shares))
        part, nth = _interleave(shares, size)
        over = nth >= np.asarray(lengths)[part]
        return int(np.argmax(over)) if over.any() else size


def sliced(tasks: TaskSet, start: int | None, stop: int | None, step: int | None = None) -> TaskSet:
    """`tasks[start:stop:step]` as a list would have it, negative numbers included."""
    indices = range(len(tasks))[start:stop:step]
    steps = "" if step is None else f":{step}"
    begin, end = "" if start is None else start, "" if stop is None else stop
    return SubsetTaskSet(tasks, indices, name=f"{tasks.name}[{begin}:{end}{steps}]")


def limited(tasks: TaskSet, limit: int | None) -> TaskSet:
    """The first `limit` tasks; all when there are fewer, or when it is None."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be >= 1, got {limit}")
    return tasks if limit is None or limit >= len(tasks) else sliced(tasks, None, limit)


def shuffled(tasks: TaskSet, *, seed: int) -> TaskSet:
    """All tasks in an order that is a function of the seed and their number."""
    order = np.random.default_rng(seed).permutation(len(tasks))
    return SubsetTaskSet(tasks, order, name=f"{tasks.name} shuffled by {seed}")


def split_by_id(tasks: TaskSet, shares: Mapping[str, float], *, seed: int = 0) -> dict[str, TaskSet]:
    """Part the tasks by their ids: split name -> tasks.

    A task's split depends on nothing but its id and the seed: it stays where it is when rows are added, taken
    away or put into another order. Rows of equal content come into the same split.

    Args:
        tasks: read once, unless they are indexed.
        shares: of the tasks, about; they add up to 1.
        seed: another one parts them in another way.

    Raises:
        ConfigError: shares that do not add up to 1, or a split that gets no task.
    """
    if any(share <= 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-9:
        raise ConfigError(f"shares must be > 0 and add up to 1, got {dict(shares)}")
    place = _uniform(id_digests(tasks), seed)
    ends = np.cumsum(list(shares.values()))
    ends[-1] = np.inf
    chosen = np.searchsorted(ends, place, side="right")
    found: dict[str, TaskSet] = {}
    for number, split in enumerate(shares):
        indices = np.flatnonzero(chosen == number)
        part = SubsetTaskSet(tasks, indices, name=f"{tasks.name} ({split})")
        found[split] = MappedTaskSet(part, _InSplit(split))
    return found


def id_digests(tasks: TaskSet) -> NDArray[np.uint64]:
    """[num_tasks] 64 bits for each task's id, equal for rows of equal content. Reads what is not indexed."""
    known = getattr(tasks, "id_digests", None)
    if known is not None:
        return known()
    return np.asarray([id_digest(tasks[n].id) for n in range(len(tasks))], np.uint64)


class _InSplit:
    """Puts a task into a split. A class, because task sets are pickled."""

    def __init__(self, split: str) -> None:
        self.split = split

    def __call__(self, task: Task) -> Task:
        return replace(task, split=self.split)


def _interleave(shares: NDArray[np.float64], size: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Part, and number within it, of each of `size` tasks: the k-th of a part is at (k + 1/2) / share."""
    counts = np.ceil(shares * size).astype(np.int64) + 1
    part = np.repeat(np.arange(len(shares)), counts)
    nth = np.concatenate([np.arange(n) for n in counts])
    order = np.argsort((nth + 0.5) / shares[part], kind="stable")[:size]
    return part[order], nth[order]


def _uniform(digests: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """[num_tasks] in [0, 1): the finalizer of splitmix64 over digest and seed."""
    salt = np.uint64(id_digest(str(seed)))
    mixed = digests ^ salt
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
