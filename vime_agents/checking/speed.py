"""How long a reset and a step take."""

from __future__ import annotations

import statistics
import time

from vime_agents.checking.drive import bounded
from vime_agents.checking.kit import Session, check

SLOW_S = 1.0


@check(
    "speed",
    family="speed",
    fix="load what all episodes share once (functools.cache); keep sandboxes warm (--sandbox-pool-size)",
)
async def speed(session: Session) -> None:
    """A reset takes less than a second, and so does each step of gold (the median counts)."""
    resets: list[float] = []
    steps: list[float] = []
    for task in await session.task_indices():
        replies = await session.best_replies(task)
        env = session.make()
        started = time.perf_counter()
        await bounded(
            env.areset(seed=task, options={"task": task}), "reset", session.scale.call_s, session.author
        )
        resets.append(time.perf_counter() - started)
        for reply in replies:
            started = time.perf_counter()
            values = await bounded(env.astep(reply), "step", session.scale.call_s, session.author)
            steps.append(time.perf_counter() - started)
            if session.ended(values):
                break
        await session.close(env)
    for name, times in (("reset", resets), ("step", steps)):
        median_s = statistics.median(times)
        session.measure(f"{name}_ms", median_s * 1000)
        if median_s > SLOW_S:
            session.find(f"a {name} takes {median_s:.1f} s", severity="warning")
