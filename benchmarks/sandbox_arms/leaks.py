"""Sandboxes are created, used and closed by owners of which many are killed: what is left afterwards?

`python -m benchmarks.sandbox_arms.leaks SPEC` is one such owner; SPEC is JSON. It prints a line for each
cycle, and at the end how many more files it has open than after the first.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vime_agents import registry
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import limits
from vime_sandboxes.managed import ManagedProvider
from vime_sandboxes.reaper import reap

OWNERS_AT_ONCE = 4
MAX_CYCLES = 12
"""Of one owner; it is killed, most of the time, somewhere on the way."""


def measure(spec: SandboxSpec, cycles: int, seed: int = 1) -> dict[str, int]:
    """Run at least `cycles` of them; count what one round of the reaper leaves."""
    rng = random.Random(seed)
    mark = secrets.token_hex(8)
    mounts, owners = _mounts(spec), set[int]()
    folder = tempfile.mkdtemp(prefix="vime-bench-")
    done = killed = growth = 0
    with ThreadPoolExecutor(OWNERS_AT_ONCE) as pool:
        while done < cycles:
            plans = [rng.choice([None, *range(MAX_CYCLES)]) for _ in range(OWNERS_AT_ONCE)]
            delays = [rng.uniform(0, 0.2) for _ in plans]
            for pid, count, open_files in pool.map(
                lambda p, d: _owner(spec, mark, folder, p, d), plans, delays
            ):
                owners.add(pid)
                done += count
                growth = max(growth, open_files)
            killed += sum(plan is not None for plan in plans)
    _settled(lambda: _processes(mark))
    reaped = asyncio.run(reap(backends=[spec.backend]))
    left_folders = len(os.listdir(folder))
    shutil.rmtree(folder)
    return {
        "cycles": done,
        "owners_killed": killed,
        "removed_by_the_reaper": len(reaped.removed),
        "reaper_failed": len(reaped.failed),
        "left_sandboxes": len(asyncio.run(_listed(spec.backend))),
        "left_processes": _settled(lambda: _processes(mark)),
        "left_mounts": _settled(lambda: len(_mounts(spec) - mounts)),
        "left_groups": _settled(lambda: _groups(owners)),
        "left_folders": left_folders,
        "left_files": growth,
    }


def _owner(
    spec: SandboxSpec, mark: str, folder: str, kill_after: int | None, delay_s: float
) -> tuple[int, int, int]:
    """One owner: its process id, the cycles that it completed, and by how many its open files grew."""
    plain = {"backend": spec.backend, "image": spec.image, "memory_mb": spec.memory_mb, "mark": mark}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(plain)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": folder},
    )
    assert process.stdout is not None
    count = growth = 0
    for line in process.stdout:
        if line != "cycle\n":
            growth = int(line)
            continue
        count += 1
        if count == kill_after:
            break
    if kill_after is not None:
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    return process.pid, count, growth


async def _cycles(spec: SandboxSpec, mark: str) -> None:
    await _some_cycles(spec, mark, 1)  # what stays open for good is open from here on
    before = len(os.listdir("/proc/self/fd"))
    await _some_cycles(spec, mark, MAX_CYCLES - 1)
    print(max(0, len(os.listdir("/proc/self/fd")) - before), flush=True)


async def _some_cycles(spec: SandboxSpec, mark: str, count: int) -> None:
    provider = ManagedProvider(registry.sandbox_provider(spec.backend), run="benchmark")
    for _ in range(count):
        sandbox = await provider.create(spec)
        await sandbox.exec(["sh", "-c", "sleep 600 & echo x > file", mark])
        await sandbox.spawn(["python3", "-IS", "-c", "import time; time.sleep(600)", mark])
        await sandbox.close()
        print("cycle", flush=True)
    await provider.aclose()


async def _listed(backend: str) -> list[str]:
    provider = registry.sandbox_provider(backend)
    found = [info.id for info in await provider.list() if info.labels.get("vime.run") == "benchmark"]
    await provider.aclose()
    return found


def _settled(count: Callable[[], int]) -> int:
    """The count once it has stopped falling: the kernel takes a moment to end what was killed."""
    deadline = time.monotonic() + 10
    while (left := count()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _processes(mark: str) -> int:
    count = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += mark.encode() in file.read_bytes() and file.parent.name != str(os.getpid())
        except OSError:  # it has ended
            continue
    return count


def _mounts(spec: SandboxSpec) -> set[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return {line for line in lines if spec.backend == "docker" or "docker" not in line}


def _groups(owners: set[int]) -> int:
    """Control groups of these owners, whose process id is in the name."""
    found = Path("/sys/fs/cgroup").glob(f"**/{limits.PREFIX}-*")
    return sum(int(path.name.removeprefix(limits.PREFIX).split("-")[1]) in owners for path in found)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    owner_mark = given.pop("mark")
    asyncio.run(_cycles(SandboxSpec(**given), owner_mark))
