"""Owners of sandboxes without a service that are killed at any moment: nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vime_sandboxes import limits, local_snapshot

pytestmark = pytest.mark.integration
_OWNER = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from vime_agents import registry
from vime_agents.sandbox import SandboxSpec
backend, mark = sys.argv[1:]
async def one(provider):
    sandbox = await provider.create(SandboxSpec(backend=backend, memory_mb=64))
    await sandbox.spawn(["sh", "-c", f"setsid sleep {mark} & exec cat"])
    await sandbox.exec(["sh", "-c", f"(setsid sleep {mark} >/dev/null 2>&1 &)"])
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    await provider.delete_snapshot(snapshot)
    await sandbox.close()
async def main():
    provider = registry.sandbox_provider(backend)
    print("begins", flush=True)
    while True:
        await asyncio.gather(*(one(provider) for _ in range(3)))
asyncio.run(main())
"""


def processes(wanted: Callable[[bytes], bool]) -> list[str]:
    """Command lines of this machine's processes, zombies excepted."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes()
        except OSError:
            continue
        if line and wanted(line):
            found.append(line.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


@pytest.mark.parametrize("backend", ["local", "unsafe"])
async def test_owners_that_are_killed_leave_nothing(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    moments = random.Random(4)
    mark = f"600.{moments.randrange(1 << 60)}"
    owners = []
    for _ in range(20):
        owner = subprocess.Popen([sys.executable, "-c", _OWNER, backend, mark], stdout=subprocess.PIPE)
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"begins\n"
        await asyncio.sleep(moments.uniform(0, 0.5))
        owner.kill()
        owner.wait()
        owner.stdout.close()
        owners.append(owner.pid)

    def ours(line: bytes) -> bool:
        return mark.encode() in line or any(f":{pid}:".encode() in line for pid in owners)

    async with asyncio.timeout(30):
        while processes(ours):
            await asyncio.sleep(0.05)
    limits.remove_orphans()
    local_snapshot.remove_orphans(tmp_path / "state" / "snapshots")
    groups = [g for p in owners for g in Path("/sys/fs/cgroup").glob(f"**/{limits.PREFIX}-{p}-*")]
    assert groups == []
    assert list((tmp_path / "state" / "snapshots").glob("*")) == []


async def test_a_forked_child_of_the_owner_keeps_no_sandbox_alive() -> None:
    mark = f"600.{random.randrange(1 << 60)}"
    with subprocess.Popen(
        [sys.executable, "-c", _FORKING_OWNER, mark], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert len(processes(lambda line: mark.encode() in line and b"sleep" in line)) >= 1
        owner.kill()
    try:
        async with asyncio.timeout(30):
            while processes(lambda line: line.startswith(b"sleep") and mark.encode() in line):
                await asyncio.sleep(0.05)
        assert Path("/proc", str(child)).exists()
    finally:
        os.kill(child, signal.SIGKILL)


_FORKING_OWNER = """
import asyncio, os, sys, time
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.local import LocalSandboxProvider
async def main():
    sandbox = await LocalSandboxProvider().create(SandboxSpec(memory_mb=64))
    await sandbox.spawn(["sleep", sys.argv[1]])
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(600)
    print(child, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
