"""Snapshots of local sandboxes: the working directory in a tar file on this machine.

They live in `$VIME_AGENTS_STATE/snapshots` (by default in `~/.local/state/vime-agents/snapshots`), where
other processes can use them as long as the process that took them lives. What a killed process left is
removed by the next one.
"""

from __future__ import annotations

import atexit
import os
import secrets
from functools import cache
from pathlib import Path

from vime_agents.errors import SandboxUnavailable
from vime_agents.sandbox import Sandbox, Snapshot
from vime_sandboxes import transfer
from vime_sandboxes.ledger import state_folder
from vime_sandboxes.ownership import owner, owner_alive

_SUFFIX = ".snapshot.tar"


def folder() -> Path:
    """Where they are."""
    return state_folder() / "snapshots"


async def take(sandbox: Sandbox, path: str) -> Snapshot:
    """Keep the folder `path` of `sandbox`. Raises as `Sandbox.download` does."""
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailable(f"no place for snapshots: {error}; set VIME_AGENTS_STATE") from error
    _remove_orphans_once(place)
    file = place / f"{owner()}:{secrets.token_hex(8)}{_SUFFIX}"
    size = await transfer.pack(sandbox, path, file, max_bytes=sandbox.spec.memory_mb << 20)
    _mine(os.getpid()).add(file)
    return Snapshot(id=str(file), spec=sandbox.spec, size_bytes=size)


def find(snapshot: Snapshot) -> Path:
    """Its file. Raises SandboxUnavailable when it is gone, or was never one."""
    file = Path(snapshot.id)
    if not file.name.endswith(_SUFFIX) or not file.is_file():
        raise SandboxUnavailable(
            f"no snapshot {snapshot.id!r}: it was deleted, its owner has ended, or it is another backend's"
        )
    return file


def delete(snapshot: Snapshot) -> None:
    """Remove its file, if it is there."""
    file = Path(snapshot.id)
    if file.name.endswith(_SUFFIX):
        file.unlink(missing_ok=True)
        _mine(os.getpid()).discard(file)


@cache
def _mine(pid: int) -> set[Path]:
    files: set[Path] = set()
    atexit.register(_delete_all, pid, files)
    return files


def _delete_all(pid: int, files: set[Path]) -> None:
    if os.getpid() == pid:
        for file in files:
            file.unlink(missing_ok=True)


@cache
def _remove_orphans_once(place: Path) -> None:
    remove_orphans(place)


def remove_orphans(place: Path) -> None:
    """Remove what processes of this host that no longer live left, whole or half-written."""
    for file in place.glob(f"*{_SUFFIX}*"):
        if owner_alive(":".join(file.name.lstrip(".").split(":")[:4])) is False:
            file.unlink(missing_ok=True)
