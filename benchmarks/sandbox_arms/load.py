"""Many sandboxes at once: boots and commands per second, and what each costs in memory."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from vime_agents.sandbox import SandboxProvider, SandboxSpec


async def measure(provider: SandboxProvider, spec: SandboxSpec, count: int, execs: int) -> dict[str, float]:
    """Open `count`, run `true` `execs` times in each, all at once."""
    before = _memory_of_children_mb()
    started = time.perf_counter()
    boxes = await asyncio.gather(*(provider.create(spec) for _ in range(count)))
    boots_s = time.perf_counter() - started
    try:
        memory_mb = (_memory_of_children_mb() - before) / count

        async def work(number: int) -> None:
            for _ in range(execs):
                if not (await boxes[number].exec(["true"])).ok:
                    raise RuntimeError("`true` failed")

        started = time.perf_counter()
        await asyncio.gather(*(work(n) for n in range(count)))
        execs_s = time.perf_counter() - started
    finally:
        started = time.perf_counter()
        await asyncio.gather(*(box.close() for box in boxes))
        closes_s = time.perf_counter() - started
    return {
        "sandboxes": count,
        "boots_per_s": count / boots_s,
        "execs_per_s": count * execs / execs_s,
        "closes_per_s": count / closes_s,
        "memory_each_mb": memory_mb,
    }


def _memory_of_children_mb() -> float:
    """Memory of this process's descendants, what is shared counted once (PSS)."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(folder.name))
    total, todo = 0, list(children.get(os.getpid(), []))
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
