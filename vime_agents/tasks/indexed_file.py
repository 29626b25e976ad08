"""A text file whose rows are known by their place; it is read one row at a time, however large it is."""

from __future__ import annotations

import os
import weakref
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import DatasetError
from vime_agents.tasks.rows import IndexedTaskSet, RowRules, RowScan


class IndexedFile:
    """An open file that must stay as it is. Safe in threads; opened again where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()
        self._state = _state(self._fd)

    def read(self, start: int, num_bytes: int) -> bytes:
        """The bytes from `start`.

        Raises:
            DatasetError: the file changed since it was opened.
        """
        if _state(self._fd) != self._state:
            raise DatasetError(f"{self.path} changed after its rows were counted; load it again")
        found = bytearray()
        while len(found) < num_bytes:
            piece = os.pread(self._fd, num_bytes - len(found), start + len(found))
            if not piece:
                raise DatasetError(f"{self.path} ended after {start + len(found)} bytes; load it again")
            found += piece
        return bytes(found)

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DatasetError(f"{self.path}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._fd)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_state": self._state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self._state = state["path"], state["_state"]
        self._open()


class FileTaskSet(IndexedTaskSet):
    """Tasks of a text file, indexed by offset: about 25 bytes of memory a row."""

    def __init__(self, path: str | Path, rules: RowRules | None = None) -> None:
        """Read the file once, check every row, and note where each begins.

        Raises:
            DatasetError: the file, the line and what is wrong with it; the path when it cannot be read.
        """
        path = Path(path).absolute()
        if not path.is_file():
            raise DatasetError(f"{path}: no such file")
        self._file = IndexedFile(path)
        scan = RowScan(str(path), rules or RowRules())
        starts, sizes = array("Q"), array("I")
        self.index_rows(path, scan, starts, sizes)
        ids, keep = scan.finish()
        self._starts: NDArray[np.uint64] = np.frombuffer(starts, np.uint64)[keep]
        self._sizes: NDArray[np.uint32] = np.frombuffer(sizes, np.uint32)[keep]
        super().__init__(name=path.name, rules=scan.rules, ids=ids, bad_rows=scan.bad)

    def index_rows(self, path: Path, scan: RowScan, starts: array[int], sizes: array[int]) -> None:
        """Give every row to `scan`; append offset and length, in bytes, of each that it takes."""
        raise NotImplementedError

    def parse_row(self, text: bytes) -> dict[str, Any]:
        """A row that `index_rows` found good."""
        raise NotImplementedError

    def read_row(self, index: int) -> dict[str, Any]:
        """The row of a task, from the disk."""
        return self.parse_row(self._file.read(int(self._starts[index]), int(self._sizes[index])))


def _state(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns
