"""Checks that the seed alone decides."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from vime_agents.checking.drive import comparable, first_difference
from vime_agents.checking.fresh import run_fresh
from vime_agents.checking.kit import DoesNotApply, Session, check
from vime_agents.checking.policies import FixedReplies
from vime_agents.policies.scripted import WRONG

_FEWEST_SEEDS = 10
"""So many draws from two tasks are the same once in 512 times; from more tasks, hardly ever."""


@check(
    "global-rng",
    family="determinism",
    fix="draw from self.np_random, or from the generator that make_task gets; never from random or np.random",
)
async def global_rng(session: Session) -> None:
    """Playing neither draws from nor seeds the generators that the whole process shares."""
    for label, policy in session.policies().items():
        for seed in range(session.scale.num_seeds):
            random.random()  # so that seeding is a change, whatever it was seeded with
            np.random.random()
            before = _states()
            await session.play(policy, seed=seed, task=None)
            for name, state in _states().items():
                if not _equal(before[name], state):
                    session.find(f"a {label} episode with seed {seed} changes the state of {name}")
                    return


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate(), "numpy.random": np.random.get_state()}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().tolist()
    return states


def _equal(left: Any, right: Any) -> bool:
    return first_difference(comparable(left), comparable(right)) is None


@check(
    "same-seed",
    family="determinism",
    explained_by=("global-rng", "shared-state", "task-ids"),
    fix="let nothing but self.task and self.np_random decide: no clock, no uuid, no order of a set",
)
async def same_seed(session: Session) -> None:
    """The same seed and replies give the same episode on two instances, to the last value."""
    for label, policy in session.policies().items():
        for seed in range(session.scale.num_seeds):
            traces = [comparable(await session.play(policy, seed=seed, task=None)) for _ in range(2)]
            difference = first_difference(*traces)
            if difference is not None:
                session.find(f"two {label} episodes with seed {seed}: {difference}")
                return


@check(
    "seeds-differ",
    family="determinism",
    fix="hand `seed` on to super().areset(), and let the seed choose the task",
)
async def seeds_differ(session: Session) -> None:
    """Among several seeds, some begin differently."""
    if await session.num_tasks() == 1:
        raise DoesNotApply("there is one task only")
    num_seeds = max(_FEWEST_SEEDS, session.scale.num_seeds)
    first: Any = None
    for seed in range(num_seeds):
        trace = await session.play(FixedReplies([WRONG]), seed=seed, task=None)
        begin = comparable([trace.observation, trace.info])
        if seed == 0:
            first = begin
        elif begin != first:
            return
    session.find(
        f"seeds 0 to {num_seeds - 1} all begin with the same observation",
        where=session.author.line_of_hook("areset") or session.author.line_of_hook("reset"),
    )


@check(
    "fresh-processes",
    family="determinism",
    explained_by=("global-rng", "shared-state", "task-ids", "same-seed"),
    fix="sort sets and dict views of str before their order can matter; use no hash(), id() or clock",
)
async def fresh_processes(session: Session) -> None:
    """Two new processes with different PYTHONHASHSEED play the same episodes."""
    first, again = await run_fresh(session)
    difference = first_difference(first["episodes"], again["episodes"])
    if difference is not None:
        session.find(f"PYTHONHASHSEED=1 and =2: {difference}")


@check(
    "quiet-import",
    family="process",
    fix="do the work in `setup`, or on first use; print and configure logging in programs, not in modules",
)
async def quiet_import(session: Session) -> None:
    """Importing it is quick, prints nothing, and leaves logging, threads and generators alone."""
    seen = (await run_fresh(session))[0]["import"]
    session.measure("import_s", seen["seconds"])
    where = f"module {session.cls.__module__}"
    if seen["printed"]:
        session.find(f"it prints {seen['printed']!r:.200}", where=where)
    for name in seen["changed"]:
        session.find(f"it changes {name}", where=where)
    if seen["seconds"] > 2:
        session.find(f"it takes {seen['seconds']:.1f} s", where=where, severity="warning")
