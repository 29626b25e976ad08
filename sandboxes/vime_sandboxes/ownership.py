"""Who owns a sandbox: a name for this process that no other process ever has, and whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

OWNER = "vime.owner"
"""Label: host, boot id, process id and start time of the process that made it, joined by colons."""
RUN = "vime.run"
"""Label: the run (say, its directory's name) that it belongs to."""
EXPIRES = "vime.expires"
"""Label: Unix time, in seconds, after which nobody needs it."""
KEY = "vime.key"
"""Label: the name of its entry in the ledger."""


def owner() -> str:
    """This process."""
    return f"{socket.gethostname()}:{_boot_id()}:{os.getpid()}:{_start_time(os.getpid())}"


def owner_alive(owner: str) -> bool | None:
    """Whether that process lives; None: it is on another host, or the text names nobody."""
    host, _, rest = owner.partition(":")
    boot, _, rest = rest.partition(":")
    pid, _, start = rest.partition(":")
    if not (boot and pid.isdigit() and start.isdigit()) or host != socket.gethostname():
        return None
    return boot == _boot_id() and _start_time(int(pid)) == int(start)


def owner_pid(owner: str) -> int | None:
    """Its process id, on whatever host."""
    parts = owner.split(":")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_time(pid: int) -> int | None:
    """In clock ticks after boot; None: no such process, or a dead one that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the command in brackets, which may hold anything: state, then 18 numbers, then the start.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
