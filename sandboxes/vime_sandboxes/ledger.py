"""What this machine's processes asked backends for: a small file for each sandbox, from before it exists.

A process that is killed between asking a backend and hearing from it leaves its entry; the reaper then looks
for what may have come of it. Entries are in `$XDG_STATE_HOME/vime-agents/sandboxes`; `VIME_AGENTS_STATE`
moves them.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vime_agents.errors import SandboxUnavailable
from vime_sandboxes.ownership import owner

CREATING, OPEN, ABANDONED = "creating", "open", "abandoned"
"""Stages. Abandoned: its owner gave up on the creation and does not know what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One sandbox, or what may become one."""

    key: str
    """Also the sandbox's label `vime.key`."""
    backend: str
    owner: str
    run: str
    created_at: float
    """Unix time, seconds."""
    expires_at: float
    stage: str = CREATING
    sandbox_id: str | None = None


class Ledger:
    """A folder of entries. Any number of processes may use it at once."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: None takes this user's own."""
        self.folder = folder or state_folder() / "sandboxes"

    def open(self, backend: str, *, ttl_s: float, run: str = "") -> Entry:
        """Write down that a sandbox is about to be asked for. Raises SandboxUnavailable when it cannot be."""
        now = time.time()
        entry = Entry(
            key=secrets.token_hex(8),
            backend=backend,
            owner=owner(),
            run=run,
            created_at=now,
            expires_at=now + ttl_s,
        )
        self._write(entry)
        return entry

    def update(self, entry: Entry, **changes: object) -> Entry:
        """Write an entry down anew; nothing when it has been removed meanwhile. Raises as `open`."""
        entry = replace(entry, **changes)
        if self._path(entry).exists():
            self._write(entry)
        return entry

    def remove(self, entry: Entry) -> None:
        """It is gone. Idempotent."""
        self._path(entry).unlink(missing_ok=True)

    def read(self) -> tuple[list[Entry], dict[Path, str]]:
        """Every entry; and for each file that cannot be understood, why."""
        entries: list[Entry] = []
        damaged: dict[Path, str] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                entries.append(_parse(json.loads(path.read_bytes()), path.stem))
            except FileNotFoundError:
                continue  # removed meanwhile
            except (OSError, ValueError, TypeError) as error:
                damaged[path] = f"{type(error).__name__}: {error}"
        return entries, damaged

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.key}.json"

    def _write(self, entry: Entry) -> None:
        # Renamed into place: a reader sees the old text or the new one. Not synced to disk: what a crash of
        # the machine loses of this, it also loses of the sandboxes, or their own labels tell.
        partial = self.folder / f".{entry.key}.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(entry)), encoding="utf-8")
            partial.replace(self._path(entry))
        except OSError as error:
            raise SandboxUnavailable(
                f"cannot write the ledger of sandboxes: {error}. Set VIME_AGENTS_STATE to another folder"
            ) from error


def state_folder() -> Path:
    """Where what must outlive a process is kept."""
    if own := os.environ.get("VIME_AGENTS_STATE"):
        return Path(own)
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "vime-agents"


def _parse(value: object, key: str) -> Entry:
    if not isinstance(value, Mapping):
        raise ValueError(f"not an object but {type(value).__name__}")
    entry = Entry(**value)
    wrong = [n for n in ("backend", "owner", "run", "stage") if not isinstance(getattr(entry, n), str)]
    wrong += [n for n in ("created_at", "expires_at") if not isinstance(getattr(entry, n), (int, float))]
    if wrong or entry.key != key:
        raise ValueError(f"wrong {', '.join(wrong) or 'key'}")
    return entry
