"""The sandbox contract: where code that an agent wrote is run.

A command's non-zero exit, time-out, out-of-memory or truncated output is a *result*. A fault of the
infrastructure is an exception of the `SandboxError` tree and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What an env asks for. Plain data: it pickles, compares and can be written to JSON."""

    backend: str = "local"
    """Entry point of group `vime_agents.sandboxes`."""
    image: str | None = None
    """Container image; None takes the backend's default (local: the host's /usr, read-only)."""
    memory_mb: int = 512
    max_processes: int = 64
    max_file_mb: int = 64
    network: bool = False
    """Whether the inside reaches any network."""
    ttl_s: float = 3600.0
    """The sandbox ends by itself after this many seconds."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment inside; the host's own environment is never inherited."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path relative to the working directory -> text, written before the first command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command did."""

    exit_code: int | None
    """The exit status; None when a signal or a limit ended it."""
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    """How much was written in all; more than `len(stdout)` means truncated."""
    stderr_bytes: int
    duration_s: float
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with status 0."""
        return self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Whether output was dropped."""
        return self.stdout_bytes > len(self.stdout) or self.stderr_bytes > len(self.stderr)

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", errors="replace")


@runtime_checkable
class Sandbox(Protocol):
    """One isolated place with a private, initially empty working directory.

    Raises (every method):
        SandboxDead: it is gone; SandboxTimeout: it did not answer.
    """

    id: str
    spec: SandboxSpec
    enforced: frozenset[str]
    """Which limits really hold here: 'memory', 'processes', 'file_size', 'network', 'filesystem', ..."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """Run a program to its end.

        On time-out its whole process tree is killed. Each stream keeps at most `max_output` bytes (head and
        tail); the rest is counted.

        Raises:
            CommandNotFound: no such program.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:
        """A file's content. Raises SandboxFileNotFound, SandboxPermissionError, SandboxError (too large)."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its folders. Raises SandboxPermissionError."""
        ...

    async def alive(self) -> bool:
        """Whether it still answers."""
        ...

    async def close(self) -> None:
        """End it and everything in it. Idempotent, bounded in time, shielded from cancellation."""
        ...


@runtime_checkable
class SandboxProvider(Protocol):
    """A backend."""

    name: str

    async def create(self, spec: SandboxSpec, *, labels: Mapping[str, str] | None = None) -> Sandbox:
        """A ready sandbox. Raises SandboxUnavailable when this machine cannot give what `spec` asks."""
        ...

    async def aclose(self) -> None:
        """Close everything that this provider made."""
        ...
