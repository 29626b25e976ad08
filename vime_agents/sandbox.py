"""The sandbox contract: where code that an agent wrote is run.

A command's non-zero exit, time-out, out-of-memory or truncated output is a *result*. A fault of the
infrastructure is an exception of the `SandboxError` tree and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What an env asks for. Plain data: it pickles, hashes, compares and can be written to JSON.

    A limit that the backend cannot hold on this machine is refused at creation (SandboxUnsupported), never
    dropped in silence.
    """

    backend: str = "local"
    """Entry point of group `vime_agents.sandboxes`: local, docker, e2b, unsafe."""
    image: str | None = None
    """What is inside: a container image, or an E2B template. None: the backend's default (local: the host's
    /usr, read-only)."""
    build: str | None = None
    """Docker: a folder with a Dockerfile; the image is tagged by the content's hash, and built once."""
    memory_mb: int = 512
    cpus: float | None = None
    """Processor time per second of wall-clock; None: no limit."""
    max_processes: int = 64
    max_file_mb: int = 64
    """Largest single file."""
    network: bool | tuple[str, ...] = False
    """False: none. True: any. Hosts ("pypi.org", "*.python.org:443"): these alone, through a proxy that the
    owner runs and that HTTP_PROXY and HTTPS_PROXY inside point to."""
    ttl_s: float = 3600.0
    """The sandbox ends by itself after this many seconds, unless `extend` moves the end."""
    user: str | None = None
    """Who runs the commands; None: the backend's unprivileged user."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment inside; the host's own environment is never inherited."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path relative to the working directory -> text, written before the first command."""
    setup: tuple[tuple[str, ...], ...] = ()
    """Commands that must all end with status 0 before the sandbox is handed out."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The backend's own settings, as its documentation names them (Docker: runtime=runsc)."""

    def __hash__(self) -> int:
        return hash(
            tuple(
                tuple(sorted(value.items())) if isinstance(value, Mapping) else value
                for value in (getattr(self, name) for name in self.__dataclass_fields__)
            )
        )


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

    @property
    def ended_by(self) -> str:
        """What ended it, for a person: `exit 0`, `time limit`, `out of memory`, `signal 9`."""
        if self.timed_out:
            return "time limit"
        if self.oom_killed:
            return "out of memory"
        return f"exit {self.exit_code}" if self.signal is None else f"signal {self.signal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What is known about a sandbox, from inside or outside of its owner."""

    id: str
    backend: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Among them `vime.run` and `vime.owner` (host:boot id:pid:start time)."""
    created_at: float | None = None
    """Unix time, seconds."""
    expires_at: float | None = None
    state: str = "running"
    """creating, running, paused, exited."""
    memory_peak_bytes: int | None = None
    cpu_s: float | None = None
    processes: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of a sandbox at one moment; memory and processes are not part of it. Plain data."""

    id: str
    """Path, image or template, as the backend understands it."""
    spec: SandboxSpec
    """Of the sandbox that it was taken from."""
    size_bytes: int | None = None


@runtime_checkable
class SandboxProcess(Protocol):
    """A program that goes on while its owner does other things: a server, a REPL, an MCP server."""

    pid: int
    """Inside the sandbox."""

    async def write(self, data: bytes) -> None:
        """Write to its standard input; waits while the program does not read.

        Raises:
            BrokenPipeError: it ended, or closed its input.
        """
        ...

    async def close_stdin(self) -> None:
        """Let it read end-of-file."""
        ...

    def output(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Pieces as they come, until both streams end.

        For one reader. A slow one holds the program back: nothing is dropped.
        """
        ...

    async def wait(self) -> ExecResult:
        """Wait for its end.

        The result's `stdout` and `stderr` are empty, its byte counts are right. Output that nobody reads
        through `output` is dropped from here on.
        """
        ...

    async def kill(self, signal: int = 9) -> None:
        """Signal it; SIGKILL is for it and everything that it started. Nothing happens when it has ended."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """One isolated place with a private working directory, initially empty but for the spec's files.

    Raises (every method):
        SandboxDead: it is gone. SandboxTimeout: it did not answer. SandboxUnreachable: nobody knows.
    """

    id: str
    spec: SandboxSpec
    labels: Mapping[str, str]
    enforced: frozenset[str]
    """Which limits really hold here: 'memory', 'processes', 'file_size', 'network', 'filesystem', ..."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """Run a program to its end.

        On time-out its whole process tree is killed. Each stream keeps at most `max_output` bytes (head and
        tail); the rest is counted. Programs that it leaves in the background go on.

        Raises:
            CommandNotFound: no such program. SandboxFileNotFound: no such `cwd`. SandboxUnsupported: this
            backend cannot be `user`.
        """
        ...

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> SandboxProcess:
        """Start a program and leave it running; also the streaming form of `exec`. Raises as `exec` does."""
        ...

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:
        """A file's content.

        Raises:
            SandboxFileNotFound, SandboxPermissionError, SandboxOutputTooLarge.
        """
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its folders. Raises SandboxPermissionError, SandboxDiskFull."""
        ...

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or a folder's content into the folder `target`, from here into the sandbox.

        Symbolic links are copied as links; what is neither file, folder nor link is refused.
        """
        ...

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file or a folder's content out.

        Nothing is ever written outside of `target`.

        Raises:
            SandboxOutputTooLarge: more than `max_bytes`.
            SandboxError: an entry would lead out (an absolute or climbing path or link), or is a device.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Keep the files of the working directory (Docker, E2B: of the whole file system) as they are now."""
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Kill every program and put the files back to what `snapshot` holds. Same limits, same id."""
        ...

    async def extend(self, ttl_s: float) -> None:
        """Let it end `ttl_s` seconds from now."""
        ...

    async def info(self) -> SandboxInfo:
        """What it is and what it used."""
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

    async def preflight(self) -> None:
        """Really try whether it works here. Raises SandboxUnavailable with the reason and the way out."""
        ...

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> Sandbox:
        """A ready sandbox; with the files of `snapshot` (of this backend) when one is given.

        Raises:
            SandboxUnavailable: the backend does not work here. SandboxUnsupported: it cannot give what `spec`
            asks. SandboxNotReady: it started but did not become ready; another attempt may help.
        """
        ...

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Free what it takes. Idempotent."""
        ...

    async def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox of this kind that vime-agents made, of any owner that this machine can see."""
        ...

    async def remove(self, sandbox_id: str) -> None:
        """End a sandbox of any owner by its id, as the reaper does. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close everything that this provider made."""
        ...


@runtime_checkable
class BoundedProvider(Protocol):
    """A provider whose `create` waits for room."""

    def check_room(self, spec: SandboxSpec, count: int) -> None:
        """Raises SandboxUnsupported when there can never be room for `count` of them at once."""
        ...
