"""Append-safe JSON Lines files: whole lines or nothing, whatever is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vime_agents.errors import DatasetError

_BLOCK_BYTES = 1 << 16


class JsonLinesWriter:
    """Appends lines to one file; drops a torn last line when it opens it."""

    def __init__(self, path: str | Path, *, sync_each: bool) -> None:
        """Open or make the file.

        Args:
            path: the file; its folder must exist.
            sync_each: force each line to the disk, for files whose rate is low.
        """
        self.path = Path(path)
        drop_torn_line(self.path)
        self._sync_each = sync_each
        self._file = self.path.open("ab", buffering=0)

    def append(self, line: str) -> None:
        """Write one line (without its newline) in one call to the operating system."""
        data = line.encode() + b"\n"
        written = self._file.write(data)
        while written < len(data):  # a signal or a full pipe may cut a write short
            written += self._file.write(data[written:])
        if self._sync_each:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Force everything to the disk. Idempotent."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def drop_torn_line(path: Path) -> None:
    """Cut off what follows the last newline: a process died while it wrote it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - _BLOCK_BYTES)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            file.truncate(position)


def read_json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each whole line.

    Raises:
        DatasetError: no such file, or a line that is not a JSON object.
    """
    path = Path(path)
    if not path.is_file():
        raise DatasetError(f"{path}: no such file")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DatasetError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DatasetError(f"{path}:{number}: must be a JSON object, got {line[:80]!r}")
            yield number, row


def keep_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> int:
    """Rewrite the file with the lines that `keep` wants, in one step; how many were dropped."""
    if not path.exists():
        return 0
    rows = [row for _, row in read_json_lines(path)]
    kept = [row for row in rows if keep(row)]
    if len(kept) < len(rows):
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
    return len(rows) - len(kept)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: readers see the old or the new content, also after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
