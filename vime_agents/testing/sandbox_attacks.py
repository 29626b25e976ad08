"""Attack suite for sandbox backends: what a hostile program tries, and what must come of it.

    await run_attack("fork_bomb", MyProvider(), SandboxSpec(backend="mine"))   # ContractError: it got through

or one test for each of ATTACKS. While an attack runs, a second sandbox works beside it; afterwards nothing of
the attack is left on this machine, and its owner has not grown. Needs `python3` and `sh` in the sandbox.
"""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import time
from dataclasses import replace
from pathlib import Path

from vime_agents.errors import ContractError
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_agents.testing import (
    sandbox_attacks_files,
    sandbox_attacks_kernel,
    sandbox_attacks_resources,
    sandbox_attacks_results,
    sandbox_attacks_walls,
)
from vime_agents.testing.sandbox_attack_kit import ATTACKS
from vime_agents.testing.sandbox_kit import command_line, expect, opened

__all__ = [
    "ATTACKS",
    "run_attack",
    "sandbox_attacks_files",
    "sandbox_attacks_kernel",
    "sandbox_attacks_resources",
    "sandbox_attacks_results",
    "sandbox_attacks_walls",
]
MAX_GROWTH_BYTES = 256 << 20
"""Most memory that the owner's peak may gain by one attack: an attack's own output is far more."""
GONE_TIMEOUT_S = 30.0


async def run_attack(name: str, provider: SandboxProvider, spec: SandboxSpec | None = None) -> None:
    """Run one attack.

    Raises:
        ContractError: it got through, or the machine or a neighbour suffered.
    """
    attack, mark, spec = ATTACKS[name], secrets.token_hex(8), spec or SandboxSpec()
    peak_bytes = _peak_bytes()
    async with opened(provider, spec) as neighbour:
        beats = asyncio.create_task(_beat(neighbour))
        try:
            async with opened(provider, replace(spec, **attack.changes)) as sandbox:
                await attack.run(provider, sandbox, mark)
                expect(not beats.done(), "a neighbour that works meanwhile", beats)
        finally:
            beats.cancel()
            (ended,) = await asyncio.gather(beats, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended
        await _check_neighbour(neighbour)
    left = await asyncio.to_thread(_wait_until_gone, mark)
    expect(not left, "no process of the attack on this machine", left)
    grown = _peak_bytes() - peak_bytes
    expect(grown < MAX_GROWTH_BYTES, "an owner that has not grown", f"{grown >> 20} MiB more")


def processes_of_this_machine(mark: str) -> list[str]:
    """Command lines, seen from outside, that hold `mark`; what this process cannot see is not there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        line = command_line(folder.name)
        if mark.encode() in line and folder.name != str(os.getpid()):
            found.append(line.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


def _wait_until_gone(mark: str) -> list[str]:
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while (left := processes_of_this_machine(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


async def _beat(neighbour: Sandbox) -> None:
    await neighbour.write("mine.txt", b"untouched")
    while True:
        await _check_neighbour(neighbour)
        await asyncio.sleep(0.05)


async def _check_neighbour(neighbour: Sandbox) -> None:
    result = await neighbour.exec(["sh", "-c", "cat mine.txt; echo $(ls -A | wc -l)"], timeout_s=120.0)
    if result.stdout != b"untouched1\n":
        raise ContractError(f"a neighbour that works as before; saw {result!r:.500}")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
