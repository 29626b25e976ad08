"""What the sandbox checks are written with, and the list of them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable

from vime_agents.errors import ContractError
from vime_agents.sandbox import ExecResult, Sandbox, SandboxProvider, SandboxSpec

Check = Callable[[SandboxProvider, SandboxSpec], Awaitable[None]]
CHECKS: dict[str, Check] = {}
"""Name -> check; a check raises ContractError when the backend breaks the promise in its docstring."""


def check(function: Check) -> Check:
    """Add a check to the list."""
    CHECKS[getattr(function, "__name__")] = function  # noqa: B009 - a Callable has no declared name
    return function


@contextlib.asynccontextmanager
async def opened(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """A sandbox that is closed at the end."""
    sandbox = await provider.create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def expect(condition: bool, promise: str, seen: object) -> None:
    """Fail unless `condition`; `promise` says what should have been."""
    if not condition:
        raise ContractError(f"{promise}; saw {seen!r:.1000}")


async def python(sandbox: Sandbox, program: str, *arguments: str, timeout_s: float = 30.0) -> ExecResult:
    """Run a program text by the python3 inside."""
    return await sandbox.exec(["python3", "-IS", "-c", program, *arguments], timeout_s=timeout_s)


async def processes_with(sandbox: Sandbox, mark: str) -> int:
    """How many processes inside have `mark` in their command line."""
    program = (
        f"{inspect.getsource(command_line)}\n"
        "import os, sys\n"
        "mark = sys.stdin.buffer.read()\n"
        "print(sum(mark in command_line(p) for p in os.listdir('/proc') if p.isdigit()))\n"
    )
    result = await sandbox.exec(["python3", "-IS", "-c", program], stdin=mark.encode())
    return int(result.text)


def command_line(pid: str) -> bytes:
    """A process's arguments, each ended by a NUL; b"" for a zombie, a kernel thread and what is gone.

    They are empty for a moment, too, while it becomes another program: that is waited out, for 0.1 s at most.
    """
    import time

    found = b""
    try:
        for _ in range(100):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found = file.read()
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if found or fields[0] in (b"Z", b"X") or int(fields[6]) & 0x200000:  # PF_KTHREAD
                break
            time.sleep(0.001)
    except OSError:
        return b""
    return found


async def raises(error: type[BaseException], what: str, call: Awaitable[object]) -> None:
    """Fail unless awaiting `call` raises `error`."""
    try:
        seen = await call
    except error:
        return
    raise ContractError(f"{what} raises {error.__name__}; saw {seen!r:.300}")
