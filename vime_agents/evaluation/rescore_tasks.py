"""The tasks of a stored evaluation -> what its episodes are graded on now."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from vime_agents.errors import ConfigError
from vime_agents.evaluation.regrade import SingleAgentEnv
from vime_agents.storage.stored_evaluation import StoredEvaluation
from vime_agents.storage.stored_tasks import StoredTask, changed_tasks
from vime_agents.task import Task

TasksFrom = Literal["stored", "present"]
_MOST_LOOKED_AT = 100_000
"""Tasks of an env among which those that were played are looked for."""


def tasks_to_grade_on(
    stored: StoredEvaluation,
    make_env: Callable[[], SingleAgentEnv],
    tasks_from: TasksFrom | None,
) -> tuple[dict[str, Task], list[str]]:
    """(id -> what episodes are graded on, texts on tasks that had another content). Raises ConfigError."""
    played = stored.tasks
    if played is None:
        raise ConfigError(
            f"{stored.path} does not hold the tasks that were played: an older release wrote it. Evaluate "
            "again"
        )
    present = _present_tasks(make_env, played)
    now = {name: StoredTask.of(task) for name, task in present.items()}
    changed = changed_tasks(played, now)
    if changed and tasks_from is None:
        raise ConfigError(
            f"the environment's tasks are not those that were played: {'; '.join(changed)}. Give --tasks "
            "present, if the questions are the same and answers were mended, or --tasks stored, for all as "
            "it was"
        )
    gone = [name for name in played if name not in present]
    if gone and tasks_from != "stored":
        raise ConfigError(
            f"{len(gone)} of the tasks that were played are not among the environment's now, {gone[0]!r} the "
            "first (a task without an id of its own has a hash of its content for one). Give --tasks stored, "
            "or evaluate again"
        )
    chosen: dict[str, Task] = {}
    for name, task in played.items():
        if tasks_from == "present" or (name in now and now[name].content == task.content):
            chosen[name] = present[name]
        elif task.inputs is None:
            raise ConfigError(
                f"--tasks stored: task {name!r} is stored by its hash alone, as its inputs are not JSON; "
                "evaluate again"
            )
        else:
            chosen[name] = Task(id=name, inputs=task.inputs, split=task.split, metadata=task.metadata)
    return chosen, changed if tasks_from == "present" else []


def _present_tasks(make_env: Callable[[], SingleAgentEnv], wanted: Collection[str]) -> dict[str, Task]:
    """Of these ids, those that the env has; it may have put others before them since."""
    env = make_env()
    found: dict[str, Task] = {}
    try:
        tasks = env.task_set()
        for index in range(min(len(tasks), _MOST_LOOKED_AT)):
            task = tasks[index]
            if task.id in wanted:
                found[task.id] = task
                if len(found) == len(wanted):
                    break
    finally:
        env.close()
    return found
