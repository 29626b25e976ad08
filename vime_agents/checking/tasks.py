"""Checks of the task set."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from vime_agents.checking.drive import comparable, first_difference
from vime_agents.checking.kit import CannotRun, DoesNotApply, Session, check
from vime_agents.errors import ConfigError
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.task import Task, content_id


async def _tasks(session: Session, split: str | None = None) -> list[Task]:
    env = session.cls(split=split or session.split)
    most = max(session.scale.num_listed_tasks, session.scale.num_tasks)

    def read() -> list[Task]:
        tasks = env.task_set()
        return [tasks[i] for i in range(min(len(tasks), most))]

    limit = asyncio.timeout(session.scale.listing_s)
    try:
        async with limit:
            return await asyncio.to_thread(read)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the author's own
        session.hung = True  # its thread goes on
        reason = f"{most} tasks were not read within {session.scale.listing_s:g} s"
        raise CannotRun(reason) from error
    finally:
        await session.close(env)


@check(
    "task-ids",
    family="tasks",
    explained_by=("global-rng",),
    fix="give each row an 'id' of its own, and make order and content a function of the split and task_seed",
)
async def task_ids(session: Session) -> None:
    """Task ids are unique, and two instances have the same tasks in the same order."""
    first, again = await _tasks(session), await _tasks(session)
    where = session.author.line_of_hook("tasks") or session.author.line_of_hook("make_task")
    seen: dict[str, int] = {}
    for index, task in enumerate(first):
        if task.id in seen:
            session.find(f"tasks {seen[task.id]} and {index} both have the id {task.id!r}", where=where)
            break
        seen[task.id] = index
    pairs = zip(first, again, strict=False)
    for index, (one, other) in enumerate(pairs):
        difference = first_difference(comparable(one), comparable(other))
        if difference is not None:
            session.find(f"task {index} of two instances: {difference}", where=where)
            return
    if len(first) != len(again):
        session.find(f"two instances have {len(first)} and {len(again)} tasks", where=where)


@check(
    "task-json",
    family="tasks",
    fix="keep a task's inputs plain JSON data: str, int, float, bool, None, lists, dicts with str keys",
)
async def task_json(session: Session) -> None:
    """A task's inputs are JSON, so that it can be stored and sent."""
    where = session.author.line_of_hook("tasks") or session.author.line_of_hook("make_task")
    for index, task in enumerate(await _tasks(session)):
        try:
            text = json.dumps(task.inputs, allow_nan=False)
            text.encode()
        except (TypeError, ValueError) as error:
            session.find(f"task {index} ({task.id}): {error}", where=where)
            return
        difference = first_difference(_listed(task.inputs), json.loads(text))
        if difference is not None:
            session.find(f"task {index} ({task.id}) comes back changed from JSON: {difference}", where=where)
            return


def _listed(value: Any) -> Any:
    """Tuples as lists: that change is harmless."""
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, (list, tuple)) else value


@check(
    "split-overlap",
    family="tasks",
    fix="draw train and test from tasks that have nothing in common, for example by a hash of the content",
)
async def split_overlap(session: Session) -> None:
    """No task of train is in test."""
    contents: dict[str, set[str]] = {}
    for split in ("train", "test"):
        try:
            tasks = await _tasks(session, split)
        except (ConfigError, LookupError) as error:
            raise DoesNotApply(f"there is no split {split!r}: {error}"[:200]) from error
        contents[split] = {
            content_id({key: value for key, value in task.inputs.items() if key not in ("id", "split")})
            for task in tasks
        }
    both = contents["train"] & contents["test"]
    if both:
        session.find(
            f"{len(both)} of the first {len(contents['test'])} test tasks are in train too",
            severity="warning",
            where=session.author.line_of_hook("tasks") or session.author.line_of_hook("make_task"),
        )


@check(
    "task-options",
    family="tasks",
    fix='hand `options` on to super().areset(): options={"task": ...} pins the task',
)
async def task_options(session: Session) -> None:
    """`options={"task": ...}` pins the task by index, id and value; one that does not exist is refused."""
    where = session.author.line_of_hook("areset") or session.author.line_of_hook("reset")
    env = session.make()
    tasks = await asyncio.to_thread(env.task_set)
    for index in range(min(3, len(tasks))):
        task = tasks[index]
        for pin in (index, task.id, task):
            _, info = await env.areset(seed=0, options={"task": pin})
            for _, _, _, told in session.seen(env, {}, info):
                if told.get("task_id") != task.id:
                    session.find(
                        f"pinned {pin!r:.100}, got the task {told.get('task_id')!r} instead of {task.id!r}",
                        where=where,
                    )
                    return
    try:
        await env.areset(seed=0, options={"task": len(tasks)})
    except ConfigError:
        return
    finally:
        await session.close(env)
    session.find(f"task {len(tasks)} of {len(tasks)} is not refused with ConfigError", where=where)


@check(
    "gold",
    family="tasks",
    fix="write `gold(self)`: the replies, in order, that score the maximum on self.task",
)
async def gold(session: Session) -> None:
    """There is a `gold`, and its replies end the episode."""
    if not session.has_gold:
        session.find(
            "no `gold`: nothing shows that the tasks can be solved and that the score notices",
            severity="warning",
            where=session.author.line_of_hook("score"),
        )
        return
    for task in await session.task_indices():
        trace = await session.play(ScriptedPolicy("gold"), seed=task, task=task)
        session.must_be_possible(trace)
        fault = session.fault(trace)
        if fault is not None:
            session.find(
                f"task {task}, in {trace.failed_in}: {fault}",
                where=trace.where or session.author.line_of_hook("gold"),
            )
            return
