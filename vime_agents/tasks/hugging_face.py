"""A folder that `datasets` wrote (`save_to_disk`) -> tasks. Its rows are mapped into memory, not read."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ConfigError, DatasetError, MissingDependencyError
from vime_agents.tasks.rows import IndexedTaskSet, RowRules, RowScan, plain


class HuggingFaceTaskSet(IndexedTaskSet):
    """Tasks of a dataset on disk, or of the split `rules.split` of several."""

    def __init__(self, path: str | Path, rules: RowRules | None = None) -> None:
        """Check every row.

        Raises:
            MissingDependencyError: no `datasets`. ConfigError: no such split.
            DatasetError: the folder, the row (from 1) and what is wrong with it.
        """
        path, rules = Path(path).absolute(), rules or RowRules()
        self._dataset = _load(path, rules.split)
        scan, taken = RowScan(str(path), rules), array("Q")
        for at, found in enumerate(self._dataset):
            try:
                row = plain(found)
            except DatasetError as error:
                scan.refuse(str(error), at + 1)
                continue
            if scan.take(row, at + 1):
                taken.append(at)
        ids, keep = scan.finish()
        self._rows: NDArray[np.uint64] = np.frombuffer(taken, np.uint64)[keep]
        super().__init__(name=path.name, rules=rules, ids=ids, bad_rows=scan.bad)

    def read_row(self, index: int) -> dict[str, Any]:
        """The row of a task."""
        return plain(self._dataset[int(self._rows[index])])


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _load(path: Path, split: str) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingDependencyError("datasets", "data", f"reading the dataset {path.name}") from error
    if not is_saved_dataset(path):
        raise DatasetError(f"{path}: not a dataset that `save_to_disk` wrote: no state.json in it")
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DatasetError(f"{path}: `datasets` cannot load it: {error!r}") from error
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise ConfigError(f"{path}: no split {split!r}; it has {', '.join(sorted(map(str, found)))}")
        found = found[split]
    return found.with_format(None)
