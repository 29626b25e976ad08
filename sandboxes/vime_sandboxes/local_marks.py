"""Find local sandboxes of any owner on this machine: each one's outer process is named for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vime_agents.sandbox import SandboxInfo

_NAME = b"vime-sandbox "
_MAX_LABEL = 300
_REMOVE_TIMEOUT_S = 10.0


def mark(backend: str, sandbox_id: str, labels: Mapping[str, str]) -> str:
    """An argument of the process of a sandbox. Every user of the machine can see it: only our own labels."""
    shown = {k: v for k, v in labels.items() if k.startswith("vime.") and len(v) <= _MAX_LABEL}
    found = {"id": sandbox_id, "backend": backend, "labels": shown, "created_at": time.time()}
    return _NAME.decode() + json.dumps(found)


def find(backend: str) -> list[SandboxInfo]:
    """Every sandbox of one of the backends of this machine's processes that is in sight."""
    return [
        SandboxInfo(id=m["id"], backend=backend, labels=m["labels"], created_at=m["created_at"])
        for _, m in _outer_processes()
        if m["backend"] == backend
    ]


def remove(backend: str, sandbox_id: str) -> None:
    """End the sandbox and wait for its end; blocks, for ten seconds at most. Nothing when it is not there.

    Raises:
        PermissionError: it is another user's.
    """
    for pid, found in _outer_processes():
        if (found["backend"], found["id"]) == (backend, sandbox_id):
            with contextlib.suppress(ProcessLookupError):
                _end(pid, sandbox_id)


def _end(outer: int, sandbox_id: str) -> None:
    handle = os.pidfd_open(outer)
    try:
        # The handle is open: from here on the number cannot come to mean another process unseen.
        found = _read(outer)
        if found is None or found["id"] != sandbox_id:
            return
        if found["backend"] == "local":
            # Process 1 inside, not the outer one: its end would leave the other to be reaped by nobody.
            for child in _children(outer):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGTERM)  # the runner cleans up
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(_REMOVE_TIMEOUT_S * 1000)
    finally:
        os.close(handle)


def _outer_processes() -> Iterator[tuple[int, dict[str, Any]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := _read(int(name))) is not None:
            yield int(name), found


def _read(pid: int) -> dict[str, Any] | None:
    """What the name of a process says, when it is the outer process of a sandbox."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        marks = [a for a in command.split(b"\0") if a.startswith(_NAME)]
        if not marks:
            return None
        # What runs inside a sandbox can call itself anything. It has an inner process id, this has none.
        if _namespaces(pid) != _namespaces(os.getpid()):
            return None
        found = json.loads(marks[0][len(_NAME) :])
        known = (found["id"], found["backend"], found["labels"], found["created_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    kinds = (str, str, dict, float)
    return found if all(isinstance(v, k) for v, k in zip(known, kinds, strict=True)) else None


def _namespaces(pid: int) -> int:
    """How deep in process namespaces it is, as seen from here."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return len(next(line for line in lines if line.startswith("NSpid:")).split())


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
