"""CSV and TSV -> tasks. The first row names the keys; every value is text."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from vime_agents.errors import DatasetError
from vime_agents.tasks.indexed_file import FileTaskSet
from vime_agents.tasks.rows import MAX_ROW_BYTES, RowRules, RowScan


class CsvTaskSet(FileTaskSet):
    """Tasks of a delimited file: `.tsv` by tabs, any other by commas. A row may span lines within quotes."""

    def __init__(self, path: str | Path, rules: RowRules | None = None) -> None:
        """See FileTaskSet.

        Raises:
            DatasetError: a header without names or with one twice, or a row that is not as wide as it.
        """
        self.delimiter = "\t" if str(path).lower().endswith(".tsv") else ","
        self.keys: list[str] = []
        super().__init__(path, rules)

    def index_rows(self, path: Path, scan: RowScan, starts: array[int], sizes: array[int]) -> None:
        """See FileTaskSet."""
        # The library's own limit of 128 kB a value is for the whole process; it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
        with path.open("rb", buffering=1 << 20) as file:
            lines = _Lines(file)
            reader = self._reader(lines)
            self.keys = self._header(path, reader)
            while True:
                start, number = lines.begin_row()
                try:
                    fields = next(reader)
                    row = self._row(fields) if fields else None
                except StopIteration:
                    return
                except (csv.Error, DatasetError) as error:
                    scan.refuse(str(error), number)
                    reader = self._reader(lines)  # the old one is in the middle of the bad row
                    continue
                if row is not None and scan.take(row, number):
                    starts.append(start)
                    sizes.append(lines.offset - start)

    def parse_row(self, text: bytes) -> dict[str, Any]:
        """See FileTaskSet."""
        return self._row(next(self._reader(io.StringIO(_decode(text), newline=""))))

    def _reader(self, lines: Iterator[str] | io.StringIO) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self.delimiter, strict=True)

    def _header(self, path: Path, reader: Iterator[Sequence[str]]) -> list[str]:
        try:
            keys = list(next(reader, []))
        except csv.Error as error:
            raise DatasetError(f"{path}:1: {error}") from error
        repeated = sorted({k for k in keys if keys.count(k) > 1})
        if not keys or "" in keys or repeated:
            what = f"the key {repeated[0]!r} twice" if repeated else "a column without a name"
            raise DatasetError(f"{path}:1: the first row names the columns; this one has {what}: {keys}")
        return keys

    def _row(self, fields: Sequence[str]) -> dict[str, Any]:
        if len(fields) != len(self.keys):
            raise DatasetError(f"{len(fields)} values for the {len(self.keys)} columns {self.keys}")
        try:
            "".join(fields).encode()
        except UnicodeEncodeError as error:
            raise DatasetError("not UTF-8") from error
        return dict(zip(self.keys, fields, strict=True))


class _Lines:
    """Lines of a file as the csv module wants them, and where they are."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
        file.seek(self.offset)
        self._number = 0
        self._row_start = 0

    def begin_row(self) -> tuple[int, int]:
        """Offset and number of the line that comes next."""
        self._row_start = self.offset
        return self.offset, self._number + 1

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_ROW_BYTES + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self.offset += len(line)
        if self.offset - self._row_start > MAX_ROW_BYTES:
            raise DatasetError(f"longer than {MAX_ROW_BYTES} bytes: is a quote missing?")
        return _decode(line)


def _decode(text: bytes) -> str:
    # Bytes that are not UTF-8 become lone surrogates, which `_row` finds: here, no row could be named.
    return text.decode(errors="surrogateescape")
