"""Whether a backend works here, whether its walls and limits hold, and how fast it is: tried, not assumed."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vime_agents import registry
from vime_agents.errors import ContractError, MissingDependencyError, SandboxError
from vime_agents.sandbox import SandboxProvider, SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS
from vime_agents.testing.sandbox_kit import Check, expect, opened, processes_with
from vime_sandboxes.managed import ManagedProvider

ROUNDS = 10
"""Of each latency."""
CHECK_TIMEOUT_S = 120.0

State = Literal["holds", "broken", "not held"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One question of the self-test."""

    name: str
    promise: str
    state: State
    """`not held`: the backend says itself that it does not hold this, and so it was not tried."""
    detail: str = ""
    """What was seen instead."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, over `rounds`."""

    p50_s: float
    p95_s: float
    rounds: int


@dataclass(slots=True)
class Diagnosis:
    """What was found about one backend."""

    backend: str
    problem: str | None = None
    """Why no sandbox can be made, and what would help; None: it works."""
    enforced: list[str] = field(default_factory=list)
    """What the backend says that it holds, sorted."""
    findings: list[Finding] = field(default_factory=list)
    latencies: dict[str, Latency] = field(default_factory=dict)
    """boot: asked for until ready. exec: a command that does nothing. close."""

    @property
    def ok(self) -> bool:
        """Whether it works and everything holds."""
        return self.problem is None and all(f.state == "holds" for f in self.findings)


async def host_processes_are_invisible(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """No process of the host's can be seen."""
    mark = secrets.token_hex(8)
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", mark, stdin=subprocess.PIPE)
    try:
        async with opened(provider, spec) as sandbox:
            seen = await processes_with(sandbox, mark)
            expect(seen == 0, "no process of the host", seen)
    finally:
        host.kill()
        await host.wait()


_QUESTIONS: tuple[tuple[str, str, tuple[str, ...], Check], ...] = (
    (
        "host files",
        "the host's files and environment cannot be read",
        ("filesystem",),
        CHECKS["host_secrets_are_unreadable"],
    ),
    ("host processes", "the host's processes cannot be seen", ("filesystem",), host_processes_are_invisible),
    ("network", "nothing can be reached", ("network",), CHECKS["no_network_means_none"]),
    (
        "privileges",
        "commands are not root, and cannot become it",
        ("filesystem",),
        CHECKS["commands_have_no_privileges"],
    ),
    (
        "memory",
        "what takes too much is killed; the rest goes on",
        ("memory", "memory_per_process"),
        CHECKS["memory_is_bounded"],
    ),
    ("processes", "a fork bomb stays inside", ("processes",), CHECKS["processes_are_bounded"]),
    ("file size", "no file larger than allowed", ("file_size",), CHECKS["files_are_bounded"]),
    (
        "time limit",
        "a command that is late is killed with its children",
        (),
        CHECKS["timeouts_kill_the_tree"],
    ),
)
"""Name, promise, the limits of which the backend must claim one for it to be tried, and the check."""


async def diagnose(spec: SandboxSpec) -> Diagnosis:
    """Try the backend and image of `spec`: makes and ends about twenty sandboxes.

    What fails is in the result, not raised.

    Raises:
        UnknownIdError: no such backend.
    """
    found = Diagnosis(spec.backend)
    try:
        provider = ManagedProvider(registry.sandbox_provider(spec.backend), run="doctor")
    except (ImportError, MissingDependencyError, SandboxError) as error:
        found.problem = str(error)
        return found
    try:
        await provider.preflight()
        async with opened(provider, spec) as sandbox:
            found.enforced = sorted(sandbox.enforced)
        for name, promise, limits, check in _QUESTIONS:
            found.findings.append(await _ask(provider, spec, found.enforced, name, promise, limits, check))
        found.latencies = await _measure(provider, spec)
    except (SandboxError, OSError) as error:
        found.problem = str(error) or type(error).__name__
    finally:
        await provider.aclose()
    return found


async def _ask(
    provider: SandboxProvider,
    spec: SandboxSpec,
    enforced: Sequence[str],
    name: str,
    promise: str,
    limits: Sequence[str],
    check: Check,
) -> Finding:
    # A fork bomb where nothing holds it would be the host's problem.
    if limits and not set(limits) & set(enforced):
        return Finding(name, promise, "not held")
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check(provider, spec)
    except TimeoutError:
        return Finding(name, promise, "broken", f"no answer within {CHECK_TIMEOUT_S:g} s")
    except (ContractError, SandboxError, ValueError) as error:  # ValueError: output that is no number
        return Finding(name, promise, "broken", f"{type(error).__name__}: {error}")
    return Finding(name, promise, "holds")


async def _measure(provider: SandboxProvider, spec: SandboxSpec) -> dict[str, Latency]:
    times: dict[str, list[float]] = {"boot": [], "exec": [], "close": []}
    for _ in range(ROUNDS):
        start = time.perf_counter()
        sandbox = await provider.create(spec)
        ready = time.perf_counter()
        try:
            await sandbox.exec(["true"])
            done = time.perf_counter()
        finally:
            before_close = time.perf_counter()
            await sandbox.close()
        times["boot"].append(ready - start)
        times["exec"].append(done - ready)
        times["close"].append(time.perf_counter() - before_close)
    return {name: _latency(values) for name, values in times.items()}


def _latency(values: Sequence[float]) -> Latency:
    ordered = sorted(values)
    return Latency(_at(ordered, 0.5), _at(ordered, 0.95), len(ordered))


def _at(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above."""
    return ordered[-(-int(share * 100) * len(ordered) // 100) - 1]
