"""JSON Lines -> tasks. Lines end with a line feed and with nothing else; no other separator splits a row."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from vime_agents.tasks.indexed_file import FileTaskSet
from vime_agents.tasks.rows import MAX_ROW_BYTES, RowRules, RowScan

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonlTaskSet(FileTaskSet):
    """Tasks of a JSON Lines file: one object a line; empty lines are passed over."""

    def index_rows(self, path: Path, scan: RowScan, starts: array[int], sizes: array[int]) -> None:
        """See FileTaskSet."""
        with path.open("rb", buffering=1 << 20) as file:
            for number, start, line in _lines(file):
                if not line.strip():
                    continue
                if len(line) > MAX_ROW_BYTES:
                    scan.refuse(f"longer than {MAX_ROW_BYTES} bytes", number)
                    continue
                try:
                    row = _parse(line)
                except (ValueError, RecursionError) as error:  # JSON, UTF-8, or [[[[...
                    scan.refuse(f"not JSON: {error}", number)
                    continue
                if scan.take(row, number):
                    starts.append(start)
                    sizes.append(len(line))

    def parse_row(self, text: bytes) -> dict[str, Any]:
        """See FileTaskSet."""
        return _parse(text)


def load_jsonl(
    path: str | Path,
    *,
    required: Sequence[str] = (),
    split: str = "train",
    split_key: str | None = None,
    on_bad_row: Literal["error", "skip"] = "error",
) -> JsonlTaskSet:
    """Tasks of a JSON Lines file; see RowRules for the arguments.

    Raises:
        DatasetError: the file, the line and what is wrong with it.
    """
    rules = RowRules(split=split, split_key=split_key, required=tuple(required), on_bad_row=on_bad_row)
    return JsonlTaskSet(path, rules)


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and text of each line; of a line that is too long, no more than shows that it is."""
    start = len(_BYTE_ORDER_MARK) if file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0
    file.seek(start)
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        yield number, start, line
        while not line.endswith(b"\n"):
            start += len(line)
            line = file.readline(MAX_ROW_BYTES)
            if not line:
                return
        start += len(line)


def _parse(line: bytes) -> Any:
    return json.loads(line.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value; write null or leave the key out")
