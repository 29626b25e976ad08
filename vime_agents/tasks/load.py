"""Path -> tasks: the format by the file's name, a folder by what is in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from vime_agents.errors import ConfigError, DatasetError
from vime_agents.task import TaskSet
from vime_agents.tasks.delimited import CsvTaskSet
from vime_agents.tasks.hugging_face import HuggingFaceTaskSet, is_saved_dataset
from vime_agents.tasks.jsonl import JsonlTaskSet
from vime_agents.tasks.parquet import ParquetTaskSet
from vime_agents.tasks.rows import IndexedTaskSet, RowRules
from vime_agents.tasks.views import ConcatenatedTaskSet, limited, sliced

_FORMATS: dict[str, Callable[[Path, RowRules], IndexedTaskSet]] = {
    ".jsonl": JsonlTaskSet,
    ".ndjson": JsonlTaskSet,
    ".parquet": ParquetTaskSet,
    ".csv": CsvTaskSet,
    ".tsv": CsvTaskSet,
}
_SLICE = re.compile(r"(.+)@\[(-?\d*):(-?\d*)\]")


def load_tasks(
    path: str | Path,
    *,
    split: str = "train",
    split_key: str | None = None,
    required: Sequence[str] = (),
    on_bad_row: Literal["error", "skip"] = "error",
    limit: int | None = None,
) -> TaskSet:
    """Tasks of a file (.jsonl, .csv, .tsv, .parquet) or a folder; `path@[a:b]` is a slice of them.

    A folder is one that Hugging Face `datasets` saved, or holds files, also under `data/` or a folder of the
    split's name, whose names tell the split: `train.jsonl`, `data/train-00000-of-00002.parquet`.

    Args:
        path: with a slice behind it or without.
        split: of the tasks; in a folder, the one to load.
        split_key: key that names a row's split; other rows are left out.
        required: keys that every row has, with a value.
        on_bad_row: `error` raises the first one, `skip` leaves them out and counts them.
        limit: take no more than this many.

    Raises:
        DatasetError: file, line and what is wrong. ConfigError: no such format, split, or slice.
        MissingDependencyError: the extra to install.
    """
    cut = _SLICE.fullmatch(str(path))
    where = Path(cut[1] if cut else path)
    rules = RowRules(split=split, split_key=split_key, required=tuple(required), on_bad_row=on_bad_row)
    tasks = _load_folder(where, rules) if where.is_dir() else _load_file(where, rules)
    if cut:
        tasks = sliced(tasks, *(int(n) if n else None for n in cut.groups()[1:]))
    return limited(tasks, limit)


def _load_file(path: Path, rules: RowRules) -> IndexedTaskSet:
    make = _FORMATS.get(path.suffix.lower())
    if make is None:
        raise ConfigError(f"{path}: tasks are read from {', '.join(_FORMATS)} files, or from a folder")
    return make(path, rules)


def _load_folder(folder: Path, rules: RowRules) -> TaskSet:
    if is_saved_dataset(folder):
        return HuggingFaceTaskSet(folder, rules)
    files = _files_of_split(folder, rules.split)
    parts = [_load_file(file, rules) for file in files]
    name = f"{folder.absolute().name} ({rules.split})"
    return parts[0] if len(parts) == 1 else ConcatenatedTaskSet(parts, name=name)


def _files_of_split(folder: Path, split: str) -> list[Path]:
    named = re.compile(rf"(^|[-._]){re.escape(split)}([-._]|$)")
    known = [f for f in sorted([*folder.glob("*"), *folder.glob("data/*")]) if _is_data(f)]
    found = [f for f in known if named.search(f.stem)]
    found += [f for f in sorted(folder.glob(f"{split}/*")) if _is_data(f)]
    if not found:
        names = [str(f.relative_to(folder)) for f in known]
        raise DatasetError(f"{folder}: no file of the split {split!r}; files of tasks there: {names}")
    if len({f.suffix.lower() for f in found}) > 1:
        raise DatasetError(f"{folder}: files of several formats for {split!r}: {[f.name for f in found]}")
    return found


def _is_data(file: Path) -> bool:
    return file.suffix.lower() in _FORMATS and file.is_file()
