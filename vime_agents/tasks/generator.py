"""A generator's rows -> tasks, held in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal

from vime_agents.errors import ConfigError, DatasetError
from vime_agents.task import ListTaskSet, Task
from vime_agents.tasks.rows import RowRules, RowScan, plain

_MAX_ROWS = 1_000_000


def generated(
    rows: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    name: str | None = None,
    split: str = "train",
    required: tuple[str, ...] = (),
    limit: int | None = None,
    on_bad_row: Literal["error", "skip"] = "error",
) -> ListTaskSet:
    """Tasks out of a function that yields rows; what is endless needs `limit`.

    Raises:
        DatasetError: the function's name, the row (from 1) and what is wrong with it.
        ConfigError: more than a million rows and no limit.
    """
    source = name or getattr(rows, "__qualname__", type(rows).__name__)
    scan = RowScan(source, RowRules(split=split, required=required, on_bad_row=on_bad_row))
    taken: list[dict[str, Any]] = []
    for place, row in enumerate(islice(rows(), limit), start=1):
        if place > _MAX_ROWS and limit is None:
            raise ConfigError(
                f"{source} yields more than {_MAX_ROWS} rows: give `limit`, or a ProceduralTaskSet"
            )
        try:
            row = plain(row)
        except DatasetError as error:
            scan.refuse(str(error), place)
            continue
        if scan.take(row, place):
            taken.append(row)
    ids, keep = scan.finish()
    kept = [row for row, stays in zip(taken, keep, strict=True) if stays]
    tasks = [Task(id=ids.task_id(n, row), inputs=row, split=split) for n, row in enumerate(kept)]
    return ListTaskSet(tasks, name=source, split=split)
