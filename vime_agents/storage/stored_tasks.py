"""The tasks of an evaluation <-> a JSON Lines file, so that later code knows what was played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from vime_agents.errors import DatasetError
from vime_agents.storage.json_lines import read_json_lines
from vime_agents.task import Task, content_id

_NAMED = 3
"""Changed tasks that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """One task as the file has it."""

    id: str
    split: str
    content: str
    """`content_id` of its inputs."""
    inputs: Mapping[str, Any] | None
    """None when they are not JSON: then `content` is all that is known of them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Empty when it is not JSON."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """What is stored of a task."""
        return cls(
            id=task.id,
            split=task.split,
            content=_content(task.inputs),
            inputs=_json(task.inputs),
            metadata=_json(task.metadata) or {},
        )


def task_line(task: Task) -> str:
    """Its line, with the newline."""
    return json.dumps(asdict(StoredTask.of(task)), separators=(",", ":")) + "\n"


def read_tasks(path: Path) -> dict[str, StoredTask]:
    """Task id -> task. Raises DatasetError: no such file, or a line that is no task."""
    tasks: dict[str, StoredTask] = {}
    for number, row in read_json_lines(path):
        try:
            task = StoredTask(**row)
        except TypeError as error:
            raise DatasetError(f"{path}:{number}: not a task: {error}") from error
        tasks[task.id] = task
    return tasks


def changed_tasks(old: Mapping[str, StoredTask], new: Mapping[str, StoredTask]) -> list[str]:
    """A text for each of the first tasks whose content is another, such as `task 'a': answer 1 -> 2`."""
    changed = [task for task in old.values() if task.id in new and new[task.id].content != task.content]
    lines = [f"task {task.id!r}: {_what_changed(task, new[task.id])}" for task in changed[:_NAMED]]
    return lines + ([f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else [])


def _what_changed(old: StoredTask, new: StoredTask) -> str:
    if old.inputs is None or new.inputs is None:
        return "another content"
    absent = object()
    keys = [*old.inputs, *(key for key in new.inputs if key not in old.inputs)]
    return ", ".join(
        f"{key} {_short(old.inputs, key)} -> {_short(new.inputs, key)}"
        for key in keys
        if old.inputs.get(key, absent) != new.inputs.get(key, absent)
    )


def _short(inputs: Mapping[str, Any], key: str) -> str:
    text = repr(inputs[key]) if key in inputs else "(absent)"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _content(inputs: Mapping[str, Any]) -> str:
    try:
        return content_id(dict(inputs))
    except TypeError:  # keys that JSON does not have, or that cannot be sorted
        return content_id({"repr": repr(dict(inputs))})


def _json(values: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        return json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError):
        return None
