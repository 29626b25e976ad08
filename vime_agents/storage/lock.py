"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from vime_agents.errors import ConfigError


def take_lock(path: Path, flag: str) -> int:
    """Lock the file for this process; its descriptor. The kernel unlocks it however the process ends.

    Args:
        path: of the file, in the folder that is guarded; it is made.
        flag: that named the folder, for the error.

    Raises:
        ConfigError: another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 200).decode(errors="replace").strip()
        os.close(descriptor)
        raise ConfigError(
            f"{flag}: {path.parent} is in use by {owner or 'another process'}; stop it or give another {flag}"
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return descriptor
