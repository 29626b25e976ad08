"""What lets a folder be gone on with: one process at a time, and the same config."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import BinaryIO

import yaml

from vime_agents.config.options import Options
from vime_agents.errors import ConfigError


def take_lock(path: Path, flag: str) -> BinaryIO:
    """Lock the file for this process until it is closed; the kernel unlocks it however the process ends.

    Args:
        path: of the file, in the folder that is guarded; it is made.
        flag: that named the folder, for the error.

    Raises:
        ConfigError: another process holds it.
    """
    file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = file.read(200).decode(errors="replace").strip()
        file.close()
        raise ConfigError(
            f"{flag}: {path.parent} is in use by {owner or 'another process'}; stop it or give another {flag}"
        ) from error
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return file


def check_same_config(file: Path, config: Options, flag: str, what: str) -> None:
    """Raises ConfigError: `config` differs from that of `file` in a setting that a resume may not change.

    Args:
        file: of the start before.
        config: of this one.
        flag: that named the folder.
        what: the folder is of: a run, an evaluation.
    """
    if changed := config.changes_from(yaml.safe_load(file.read_text(encoding="utf-8"))):
        lines = "\n  ".join(changed)
        raise ConfigError(
            f"{flag}: {file.parent} belongs to {what} with another config; give another {flag}, or these "
            f"settings:\n  {lines}"
        )
