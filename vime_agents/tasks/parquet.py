"""Parquet -> tasks, one row group at a time."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import DatasetError, MissingDependencyError
from vime_agents.tasks.rows import IndexedTaskSet, RowRules, RowScan, plain

_CACHED_BYTES = 256 << 20


class ParquetTaskSet(IndexedTaskSet):
    """Tasks of a Parquet file. The row groups that were used last stay in memory, up to 256 MB of them.

    Dates and times become ISO 8601 text, decimals text; bytes are refused.
    """

    def __init__(self, path: str | Path, rules: RowRules | None = None) -> None:
        """Read the file once and check every row.

        Raises:
            MissingDependencyError: no pyarrow. DatasetError: the file, the row (from 1) and what is wrong.
        """
        self.path = Path(path).absolute()
        if not self.path.is_file():
            raise DatasetError(f"{self.path}: no such file")
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, Any] = OrderedDict()
        self._file = _open(self.path)
        scan, taken = RowScan(str(self.path), rules or RowRules()), array("Q")
        place = 0
        for batch in self._file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                place += 1
                try:
                    row = plain(row)
                except DatasetError as error:
                    scan.refuse(str(error), place)
                    continue
                if scan.take(row, place):
                    taken.append(place - 1)
        ids, keep = scan.finish()
        self._rows: NDArray[np.uint64] = np.frombuffer(taken, np.uint64)[keep]
        self._group_ends = _group_ends(self._file)
        super().__init__(name=self.path.name, rules=scan.rules, ids=ids, bad_rows=scan.bad)

    def read_row(self, index: int) -> dict[str, Any]:
        """The row of a task."""
        at = int(self._rows[index])
        group = int(np.searchsorted(self._group_ends, at, side="right"))
        start = int(self._group_ends[group - 1]) if group else 0
        return plain(self._group(group).slice(at - start, 1).to_pylist()[0])

    def _group(self, number: int) -> Any:
        with self._lock:
            if number not in self._cache:
                self._cache[number] = self._file.read_row_group(number)
                while len(self._cache) > 1 and sum(t.nbytes for t in self._cache.values()) > _CACHED_BYTES:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(number)
            return self._cache[number]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_cache", "_file")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._cache, self._file = threading.Lock(), OrderedDict(), _open(self.path)


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingDependencyError("pyarrow", "data", f"reading {path.name}") from error
    try:
        return pyarrow.parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{path}: not a Parquet file: {error}") from error


def _group_ends(file: Any) -> NDArray[np.int64]:
    groups = range(file.metadata.num_row_groups)
    return np.cumsum([file.metadata.row_group(n).num_rows for n in groups], dtype=np.int64)
