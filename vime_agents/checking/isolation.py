"""Checks that episodes and instances keep to themselves."""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any

from vime_agents.checking.drive import Trace, bounded, comparable, first_difference
from vime_agents.checking.kit import Session, check
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Policy

_AT_ONCE = 8


@check(
    "shared-state",
    family="isolation",
    fix="keep an episode's state on self, set in `setup`; for what never changes there is functools.cache",
)
async def shared_state(session: Session) -> None:
    """Playing changes neither class attributes nor variables of the author's modules."""
    before = _shared(session)
    for policy in session.policies().values():
        await session.play(policy, seed=0, task=None)
    after = _shared(session)
    for name in sorted({*before, *after}):
        difference = first_difference(before.get(name), after.get(name))
        if difference is not None:
            session.find(f"{name} changed while playing: {difference}")


def _shared(session: Session) -> dict[str, Any]:
    """Name -> value, of everything that all instances share and that can be compared."""
    state: dict[str, Any] = {}
    for base in session.cls.__mro__:
        if base.__module__ in session.author.modules:
            state |= {f"{base.__name__}.{k}": v for k, v in vars(base).items()}
    for module in session.author.modules:
        state |= {f"{module}.{k}": v for k, v in vars(sys.modules[module]).items()}
    return {
        name: comparable(value)
        for name, value in state.items()
        if not name.rpartition(".")[2].startswith("__") and _is_data(value)
    }


def _is_data(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes, int, float, tuple, list, dict, set, frozenset))


@check(
    "reset-isolation",
    family="isolation",
    explained_by=("global-rng", "shared-state", "same-seed", "close"),
    fix="set each attribute of an episode in `setup`; copy what you change of self.task, which is shared",
)
async def reset_isolation(session: Session) -> None:
    """An episode is the same on a new instance, after an abandoned one, and after one with other options."""
    tasks = await session.task_indices()
    for label, policy in session.policies().items():
        for task in tasks[:2]:
            for pin in (task, None) if task == tasks[0] else (task,):
                alone = comparable(await session.play(policy, seed=7, task=pin))
                env = session.make()
                for before in (
                    {"task": tasks[-1], "seed": 3, "max_steps": 1},
                    {"task": task, "seed": 7},
                    {"task": task, "seed": 4, "max_steps": 1},
                ):
                    await session.play(ScriptedPolicy("garbage"), env=env, **before)
                    await session.play(policy, env=env, **before)
                    after = comparable(await session.play(policy, seed=7, task=pin, env=env))
                    difference = first_difference(alone, after)
                    if difference is not None:
                        session.find(
                            f"a {label} episode on task {pin} (seed 7), after another on the same instance: "
                            f"{difference}"
                        )
                        await session.close(env)
                        return
                await session.close(env)


@check(
    "instances",
    family="isolation",
    explained_by=("global-rng", "shared-state", "same-seed"),
    fix="share nothing between instances: no fixed file, port, folder or environment variable",
)
async def instances(session: Session) -> None:
    """Episodes that are played at the same time are as if played alone."""
    tasks = await session.task_indices()
    for label, policy in session.policies().items():
        alone = [comparable(await session.play(policy, seed=task, task=task)) for task in tasks]
        traces = await _play_at_once(session, policy, tasks)
        for task, one, other in zip(tasks, alone, traces, strict=True):
            difference = first_difference(one, comparable(other))
            if difference is not None:
                session.find(f"the {label} episode of task {task}, alone and beside others: {difference}")
                return


async def _play_at_once(session: Session, policy: Policy, tasks: list[int]) -> list[Trace]:
    """A task each, some at a time: all of many would only wait for each other, and be given up."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(task: int) -> Trace:
        async with places:
            return await session.play(policy, seed=task, task=task)

    playing = [asyncio.ensure_future(one(task)) for task in tasks]
    try:
        return await asyncio.gather(*playing)
    finally:  # when one cannot be played, nor are the others that wait
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


@check(
    "aliasing",
    family="isolation",
    explained_by=("same-seed",),
    fix="return a new observation and a new info on each call (copy.deepcopy of what the env goes on using)",
)
async def aliasing(session: Session) -> None:
    """What a caller does to an observation, info or action changes nothing later; nor does the env."""
    for task in (await session.task_indices())[:2]:
        replies = await session.best_replies(task)
        kept, as_returned = await _play_replies(session, task, replies, spoil=False)
        difference = first_difference(as_returned, kept)
        if difference is not None:
            session.find(f"task {task}: a later step changes what an earlier one returned: {difference}")
            return
        _, spoiled = await _play_replies(session, task, replies, spoil=True)
        difference = first_difference(as_returned, spoiled)
        if difference is not None:
            session.find(f"task {task}: after the caller changed what it was given: {difference}")
            return


async def _play_replies(session: Session, task: int, replies: list[Any], *, spoil: bool) -> tuple[Any, Any]:
    """(what was returned, as it is at the end; as it was when it was returned)."""
    env = session.make()
    limit_s = session.scale.call_s
    returned: list[Any] = []
    snapshots: list[Any] = []

    def take(values: tuple[Any, ...]) -> None:
        returned.append(values)
        snapshots.append(comparable(values))
        if spoil:
            for value in values:
                _spoil(value)

    try:
        take(await bounded(env.areset(seed=task, options={"task": task}), "reset", limit_s, session.author))
        for reply in replies:
            action = copy.deepcopy(reply)
            values = await bounded(env.astep(action), "step", limit_s, session.author)
            if spoil:
                _spoil(action)
            take(values)
            if session.ended(values):
                break
    except Exception as error:  # noqa: BLE001 - what a spoiled observation leads to is a difference
        returned.append(error)
        snapshots.append(comparable(error))
    finally:
        await session.close(env)
    return comparable(returned), snapshots


def _spoil(value: Any) -> None:
    """Overwrite everything in it that can be."""
    if isinstance(value, (tuple, list)):
        for part in value:
            _spoil(part)
        if isinstance(value, list):
            value.append("spoiled")
    elif isinstance(value, dict):
        for key, part in value.items():
            _spoil(part)
            if isinstance(part, str) and key != "role":
                value[key] = "spoiled"
        value["spoiled"] = "spoiled"
    elif isinstance(value, set):
        value.add("spoiled")
