"""What the attacks are written with, and the list of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vime_agents.errors import SandboxDead
from vime_agents.sandbox import ExecResult, Sandbox, SandboxProvider
from vime_agents.testing.sandbox_kit import expect

Run = Callable[[SandboxProvider, Sandbox, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: its docstring says what must come of it."""

    run: Run
    """Takes the provider, a sandbox of its own, and a mark that its programs carry as an argument."""
    changes: Mapping[str, Any]
    """What it changes in the spec."""


ATTACKS: dict[str, Attack] = {}
"""Name -> attack; `run` raises ContractError when it got through."""


def attack(**changes: Any) -> Callable[[Run], Run]:
    """Add an attack to the list."""

    def add(run: Run) -> Run:
        ATTACKS[getattr(run, "__name__")] = Attack(run, changes)  # noqa: B009 - as in `check`
        return run

    return add


async def hostile(
    sandbox: Sandbox, program: str, mark: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 60.0
) -> ExecResult:
    """Run a Python program inside: it finds the mark in sys.argv[1], its arguments after that."""
    command = ["python3", "-IS", "-c", program, mark, *arguments]
    return await sandbox.exec(command, stdin=stdin, timeout_s=timeout_s)


async def works_or_is_dead(sandbox: Sandbox) -> bool:
    """Whether commands are still answered exactly; the other answer that is allowed is SandboxDead."""
    try:
        result = await sandbox.exec(["sh", "-c", "cat; exit 3"], stdin=b"in", timeout_s=120.0)
    except SandboxDead:
        return False
    expect(result.exit_code == 3 and result.stdout == b"in", "an exact answer, or SandboxDead", result)
    return True
