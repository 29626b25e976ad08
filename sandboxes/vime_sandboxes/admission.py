"""How many sandboxes this host may hold at once: the sums of their limits, and a number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vime_agents.errors import SandboxUnsupported
from vime_agents.sandbox import SandboxSpec

SHARE = 0.9
"""Of what the host has, for the limits of all sandboxes together."""
ELSEWHERE = frozenset({"e2b"})
"""Backends whose sandboxes take nothing of this host."""


@dataclass(frozen=True, slots=True)
class Room:
    """What sandboxes take, by their limits."""

    sandboxes: int
    memory_mb: int
    processes: int


class Admission:
    """Counts what is open. Not thread-safe."""

    def __init__(
        self,
        *,
        max_sandboxes: int | None = None,
        memory_mb: int | None = None,
        max_processes: int | None = None,
        share: float = 1.0,
    ) -> None:
        """`max_sandboxes`: None, no limit on their number; the others: None, `share` of nine tenths."""
        self.max_sandboxes = max_sandboxes
        share *= SHARE
        self.memory_mb = int(host_memory_mb() * share) if memory_mb is None else memory_mb
        self.max_processes = int(host_processes() * share) if max_processes is None else max_processes
        self.open = Room(0, 0, 0)

    def check(self, spec: SandboxSpec, count: int = 1) -> None:
        """Raises SandboxUnsupported when `count` at once would not fit even if nothing else was open."""
        room = _room(spec)
        for name, asked, most, unit in (
            ("memory_mb", room.memory_mb, self.memory_mb, "MB"),
            ("max_processes", room.processes, self.max_processes, "processes"),
        ):
            if count * asked > most:
                raise SandboxUnsupported(
                    f"SandboxSpec.{name} is {asked}{_times(count)}, but all sandboxes of this pool together "
                    f"may have {most} {unit}: it can never fit"
                )
        if self.max_sandboxes is not None and count > self.max_sandboxes:
            raise SandboxUnsupported(
                f"{count} sandboxes are needed at once, but this pool may have {self.max_sandboxes}: raise "
                "--max-sandboxes"
            )

    def fits(self, spec: SandboxSpec) -> bool:
        """Whether there is room now."""
        if self.max_sandboxes is not None and self.open.sandboxes >= self.max_sandboxes:
            return False
        room = _room(spec)
        return (
            self.open.memory_mb + room.memory_mb <= self.memory_mb
            and self.open.processes + room.processes <= self.max_processes
        )

    def take(self, spec: SandboxSpec) -> None:
        """One more is open."""
        self._add(spec, 1)

    def free(self, spec: SandboxSpec) -> None:
        """One less."""
        self._add(spec, -1)

    def _add(self, spec: SandboxSpec, sign: int) -> None:
        room, now = _room(spec), self.open
        self.open = Room(
            now.sandboxes + sign,
            now.memory_mb + sign * room.memory_mb,
            now.processes + sign * room.processes,
        )


def _times(count: int) -> str:
    return f", {count} times at once" if count > 1 else ""


def host_memory_mb() -> int:
    """What this process and its children may use: the host's memory, or the control group's limit."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    host_mb = next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemTotal:"))
    # In a container the group's own files are at the root of the tree, in either version.
    limits = (
        _number("/sys/fs/cgroup/memory.max"),
        _number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    )
    return min(host_mb, *(limit >> 20 for limit in limits if limit is not None))


def host_processes() -> int:
    """How many processes and threads there may be at once."""
    limits = (
        _number("/proc/sys/kernel/pid_max"),
        _number("/proc/sys/kernel/threads-max"),
        _number("/sys/fs/cgroup/pids.max"),
        _number("/sys/fs/cgroup/pids/pids.max"),
    )
    return min(limit for limit in limits if limit is not None)


def _number(path: str) -> int | None:
    """None: no such file, or no limit."""
    file = Path(path)
    text = file.read_text(encoding="ascii").strip() if file.is_file() else "max"
    return int(text) if text.isdigit() else None


def _room(spec: SandboxSpec) -> Room:
    if spec.backend in ELSEWHERE:
        return Room(1, 0, 0)
    return Room(1, spec.memory_mb, spec.max_processes)
