"""Limits that one process cannot hold for a whole sandbox: control groups, and a user of its own.

Control groups (both versions) bound the sum over all processes. Where none can be made, memory is bounded for
each process only, by the runner's resource limits; `Sandbox.enforced` then says `memory_per_process`.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

PREFIX = "vime-sandbox"
RUNNER_MB = 32
"""What the runner itself may use on top of what its commands may."""
FIRST_UID, NUM_UIDS = 1 << 20, 1 << 20
"""Users that a root owner hands out, one for each sandbox; above what systems give to accounts."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a sandbox used so far, the runner among them; None: nothing counts it."""

    memory_peak_bytes: int | None = None
    cpu_s: float | None = None
    processes: int | None = None
    """Now; without the runner."""


class ControlGroup:
    """The groups of one sandbox, one for each controller that this machine lets us use."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders
        self.controllers = frozenset(folders)

    def add(self, pid: int) -> None:
        """Put a process, and all that it will start, under the limits."""
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """Processes that were killed because memory ran out."""
        folder = self._folders.get("memory")
        if folder is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            if (folder / name).exists():
                lines = (line.split() for line in (folder / name).read_text().splitlines())
                return next((int(line[1]) for line in lines if line[0] == "oom_kill"), 0)
        return 0

    def usage(self) -> Usage:
        """What was used so far."""
        peak = self._number("memory", "memory.peak", "memory.max_usage_in_bytes")
        count = self._number("pids", "pids.current")
        return Usage(peak, self._cpu_s(), None if count is None else max(count - 1, 0))

    def _cpu_s(self) -> float | None:
        nanoseconds = self._number("cpuacct", "cpuacct.usage")
        if nanoseconds is not None:
            return nanoseconds / 1e9
        for folder in set(self._folders.values()):  # version 2 counts in every group
            if (folder / "cpu.stat").exists():
                lines = dict(line.split(" ", 1) for line in (folder / "cpu.stat").read_text().splitlines())
                if "usage_usec" in lines:
                    return int(lines["usage_usec"]) / 1e6
        return None

    def _number(self, controller: str, *names: str) -> int | None:
        folder = self._folders.get(controller)
        if folder is not None:
            for name in names:
                if (folder / name).exists():
                    return int((folder / name).read_text())
        return None

    def remove(self) -> bool:
        """Remove the groups; False while the kernel still counts a process in one of them."""
        for folder in set(self._folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def make_control_group(
    name: str,
    *,
    memory_mb: int,
    max_processes: int,
    spare_processes: int = 8,
    cpus: float | None = None,
    mounts: str | None = None,
) -> ControlGroup:
    """Make groups for what this machine allows; `mounts` stands in for /proc/mounts.

    `spare_processes`: room for the runner, and for it to start a command (which then fails by itself, at a
    limit of its own) when the inside is full. `cpus`: seconds of processor time per second; None: no limit,
    and no group for one.
    """
    folders: dict[str, Path] = {}
    pids = str(max_processes + spare_processes)
    values = {"memory": str((memory_mb + RUNNER_MB) << 20), "pids": pids, "cpuacct": ""}
    if cpus is not None:
        values["cpu"] = str(round(cpus * _CPU_PERIOD_US))
    for controller, parents in _parents(mounts).items():
        for parent in parents if controller in values else ():
            folder = parent / name
            try:
                folder.mkdir(exist_ok=True)
            except OSError:
                continue
            if _write_limits(folder, _FILES[controller], values[controller]):
                folders[controller] = folder
                break
            if folder not in folders.values():
                folder.rmdir()
    return ControlGroup(folders)


def remove_orphans(mounts: str | None = None) -> None:
    """Remove the groups of owners that were killed before they could."""
    for parents in _parents(mounts).values():
        for folder in (f for p in parents for f in p.glob(f"{PREFIX}-*")):
            owner = folder.name.removeprefix(f"{PREFIX}-").partition("-")[0]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                ControlGroup({"memory": folder}).remove()


def group_name() -> str:
    """A new name that says who the owner is."""
    return f"{PREFIX}-{os.getpid()}-{secrets.token_hex(6)}"


_CPU_PERIOD_US = 100_000
_FILES = {
    "memory": ("memory.max", "memory.limit_in_bytes", "memory.swap.max", "memory.memsw.limit_in_bytes"),
    "pids": ("pids.max",),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "cpuacct": ("cpuacct.usage",),
}
"""What each controller's limit is written to, in either version, as far as it is there; cpuacct counts."""


def _write_limits(folder: Path, names: tuple[str, ...], value: str) -> bool:
    done = False
    for name in names:
        if (folder / name).exists():
            text = {"memory.swap.max": "0", "cpu.max": f"{value} {_CPU_PERIOD_US}"}.get(name, value)
            try:
                if value:
                    (folder / name).write_text(text)
            except OSError:
                return False
            done = True
    return done


def _parents(mounts: str | None) -> dict[str, list[Path]]:
    """Controller -> folders to make groups in, best first."""
    text = Path("/proc/mounts").read_text(encoding="utf-8") if mounts is None else mounts
    own = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found: dict[str, list[Path]] = {}
    for _, folder, kind, options, *_ in (line.split() for line in text.splitlines()):
        for controller in _FILES:
            if kind == "cgroup" and controller in options.split(","):
                # Under our own group, so that its limits hold for us and our sandboxes together.
                inner = Path(folder + own.get(controller, "/"))
                found[controller] = [inner, Path(folder)] if inner != Path(folder) else [inner]
            elif kind == "cgroup2":
                # Only the root of a version 2 tree may hold processes and limited groups at once.
                found.setdefault(controller, []).append(Path(folder))
    return found


_uids_in_use: set[int] = set()


def take_uid() -> int:
    """A user that no other sandbox of this process has: process limits are counted for each user."""
    while True:
        uid = FIRST_UID + secrets.randbelow(NUM_UIDS)
        if uid not in _uids_in_use:
            _uids_in_use.add(uid)
            return uid


def give_uid_back(uid: int) -> None:
    """The sandbox of this user is gone."""
    _uids_in_use.discard(uid)
