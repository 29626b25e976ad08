"""Rows of a source -> tasks with ids: checked in one pass, before the first task is played."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ConfigError, DatasetError
from vime_agents.task import Task, content_id

MAX_ROW_BYTES = 64 << 20
"""A longer row is a bad one: it is most likely not a row at all."""
_MAX_BAD_ROWS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """What a row must be to become a task."""

    split: str = "train"
    """Split of the tasks."""
    split_key: str | None = None
    """Key that names a row's split; rows of other splits are left out. None: all rows are of `split`."""
    required: tuple[str, ...] = ()
    """Keys that every row has, with a value."""
    on_bad_row: Literal["error", "skip"] = "error"
    """`error`: the first bad row is raised with its place. `skip`: bad rows are left out and counted."""

    def __post_init__(self) -> None:
        if self.on_bad_row not in ("error", "skip"):
            raise ConfigError(f"on_bad_row must be 'error' or 'skip', got {self.on_bad_row!r}")
        if isinstance(self.required, str):
            raise ConfigError(f"required must be a sequence of keys, got the str {self.required!r}")


@dataclass(slots=True)
class BadRows:
    """The rows that were left out because they were bad."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    """Place and problem of the first 20."""

    def add(self, message: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < _MAX_BAD_ROWS_SHOWN:
            self.first.append(message)


@dataclass(slots=True)
class RowIds:
    """The ids of the rows that became tasks; 12 bytes a row, however long the ids are."""

    digests: NDArray[np.uint64]
    """[num_tasks] of the id that the row's own id or content gives: equal for rows of equal content."""
    order: NDArray[np.uint32]
    """[num_tasks] indices that sort `digests`, stably."""
    repeats: dict[int, int]
    """Index -> n, for the n-th row with content that was there before (n >= 2)."""

    def task_id(self, index: int, row: Mapping[str, Any]) -> str:
        """Id of the row at `index`."""
        n = self.repeats.get(index)
        return row_id(row) if n is None else f"{row_id(row)}-{n}"

    def candidates(self, task_id: str) -> list[int]:
        """Indices that may have this id, in order; more than one only if digests coincide."""
        at = _positions(self.digests, self.order, id_digest(task_id))
        base, _, n = task_id.rpartition("-")
        if n.isdecimal():
            at += _positions(self.digests, self.order, id_digest(base))
        return at


def row_id(row: Mapping[str, Any]) -> str:
    """The row's own `id`, or else its content's."""
    return str(row["id"]) if "id" in row else content_id(row)


def id_digest(task_id: str) -> int:
    """64 bits of a task id, equal in every process."""
    return int.from_bytes(
        hashlib.blake2b(task_id.encode(errors="surrogatepass"), digest_size=8).digest(), "big"
    )


class RowScan:
    """Takes the rows of one source in order, and says which of them become tasks."""

    def __init__(self, source: str, rules: RowRules) -> None:
        self.source, self.rules, self.bad = source, rules, BadRows()
        self._digests = array("Q")
        self._places = array("q")
        self._with_own_id = array("b")

    def take(self, row: object, place: int) -> bool:
        """Whether the row at `place` (a line or a row, from 1) becomes a task.

        Raises:
            DatasetError: it is bad, and bad rows are errors.
        """
        try:
            if not self._check(row):
                return False
            digest = id_digest(row_id(row))  # type: ignore[arg-type]
        except DatasetError as error:
            self.refuse(str(error), place)
            return False
        self._digests.append(digest)
        self._places.append(place)
        self._with_own_id.append("id" in row)  # type: ignore[operator]
        return True

    def refuse(self, problem: str, place: int) -> None:
        """The row at `place` is bad.

        Raises:
            DatasetError: bad rows are errors.
        """
        message = f"{self.source}:{place}: {problem}"
        if self.rules.on_bad_row == "error":
            raise DatasetError(message)
        self.bad.add(message)

    def finish(self) -> tuple[RowIds, NDArray[np.bool_]]:
        """The ids, and which of the rows that were taken stay: [num_taken].

        A row with the `id` of an earlier one is bad; rows of equal content get the ids x, x-2, x-3.

        Raises:
            DatasetError: no rows are left, or two have the same id and bad rows are errors.
        """
        digests = np.frombuffer(self._digests, np.uint64)
        order = np.argsort(digests, kind="stable")
        keep = np.ones(len(digests), np.bool_)
        nth: dict[int, int] = {}
        ordered = digests[order]
        for end in np.flatnonzero(ordered[1:] == ordered[:-1]) + 1:
            index, before = int(order[end]), int(order[end - 1])
            if self._with_own_id[index] or self._with_own_id[before]:
                self.refuse(f"its id is that of row {self._places[before]}", self._places[index])
                keep[index] = False
            else:
                nth[index] = nth.get(before, 1) + 1
        if not keep.any():
            why = f"; {self.bad.count} bad, the first: {self.bad.first[0]}" if self.bad.count else ""
            of_split = f" of split {self.rules.split!r}" if self.rules.split_key is not None else ""
            raise DatasetError(f"{self.source}: no rows{of_split}{why}")
        return _row_ids(digests, keep, nth), keep

    def _check(self, row: object) -> bool:
        if not isinstance(row, Mapping):
            raise DatasetError(f"a row is a JSON object, got {row!r:.80}")
        split_key = self.rules.split_key
        if split_key is not None:
            _need(row, split_key)
            if row[split_key] != self.rules.split:
                return False
        for key in self.rules.required:
            _need(row, key)
        if "id" in row and (
            isinstance(row["id"], bool) or not isinstance(row["id"], (str, int)) or row["id"] == ""
        ):
            raise DatasetError(f"an id is text or a whole number, got {row['id']!r:.80}")
        return True


class IndexedTaskSet:
    """Tasks of a source that stays where it is: a row is read when its task is asked for.

    Guarantees: ids are those of the rows, whatever the order in which they are played; `bad_rows` says what
    was left out.
    """

    def __init__(self, *, name: str, rules: RowRules, ids: RowIds, bad_rows: BadRows) -> None:
        self.name, self.rules, self.bad_rows = name, rules, bad_rows
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids.digests)

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = self.read_row(index)
        return Task(id=self._ids.task_id(index, row), inputs=row, split=self.rules.split)

    def read_row(self, index: int) -> dict[str, Any]:
        """The row of a task."""
        raise NotImplementedError

    def index_of(self, task_id: str) -> int | None:
        """Index of the task with this id, or None; reads no more rows than it must."""
        return next((at for at in self._ids.candidates(task_id) if self[at].id == task_id), None)

    def id_digests(self) -> NDArray[np.uint64]:
        """[num_tasks] equal for tasks of equal content; what a split by id goes by."""
        return self._ids.digests


def plain(value: Any, where: str = "") -> Any:
    """A value as JSON has it: dates as ISO 8601, decimals as text, NumPy's numbers as Python's.

    Raises:
        DatasetError: it cannot be JSON; names the key.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DatasetError(f"{where or 'a value'} is {value}, which JSON does not have; leave it out")
        return value
    if isinstance(value, Mapping):
        return {_key(k, where): plain(v, f"{where}.{k}" if where else str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, f"{where}[{n}]") for n, v in enumerate(value)]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist(), where)
    raise DatasetError(f"{where or 'a value'} is a {type(value).__name__}, which JSON does not have")


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise DatasetError(f"{where or 'a row'} has the key {key!r}; keys are text")
    return key


def _need(row: Mapping[str, Any], key: str) -> None:
    if key not in row:
        raise DatasetError(f"no key {key!r}; the row has {sorted(map(str, row))}")
    if row[key] is None:
        raise DatasetError(f"{key!r} has no value")


def _row_ids(digests: NDArray[np.uint64], keep: NDArray[np.bool_], nth: Mapping[int, int]) -> RowIds:
    new_index = np.cumsum(keep) - 1
    kept = digests[keep]
    order = np.argsort(kept, kind="stable").astype(np.uint32)
    return RowIds(digests=kept, order=order, repeats={int(new_index[i]): n for i, n in nth.items()})


def _positions(digests: NDArray[np.uint64], order: NDArray[np.uint32], digest: int) -> list[int]:
    wanted = np.uint64(digest)
    first = int(np.searchsorted(digests, wanted, side="left", sorter=order))
    last = int(np.searchsorted(digests, wanted, side="right", sorter=order))
    return [int(at) for at in order[first:last]]
