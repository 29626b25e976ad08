"""Ends what a dead driver left on this machine. Standard library only; run as a file.

Ray ends its main processes when the driver is killed, but its agents only minutes later. Every process that
a driver starts inherits a mark in its environment; this one holds a pipe to the driver, and when the pipe
closes it kills whatever still carries the mark, and removes the folders that it was given.

    python -IS reaper.py MARK [FOLDER ...]
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MARK = "VIME_AGENTS_DRIVER"
_GIVE_UP_S = 30.0
_TRACKERS_S = 10.0
_EXEC_S = 0.05
_BARE = 5
"""A process that so often shows arguments but no environment has none: the two are not read at one time."""
_KERNEL_THREAD = 0x200000  # PF_KTHREAD of linux/sched.h


def marked(mark: str) -> list[int]:
    """Processes, zombies aside, whose environment carries the mark."""
    needle = f"{MARK}={mark}".encode()
    found = []
    deadline = time.monotonic() + _EXEC_S
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if needle in _environment(folder, deadline).split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it ended meanwhile, or is another user's
                continue
    return found


def _environment(process: Path, deadline: float) -> bytes:
    """What it was started with. While it becomes another program it shows nothing: that is waited out."""
    bare = 0
    while not (found := (process / "environ").read_bytes()) and bare < _BARE:
        if (process / "cmdline").read_bytes():
            bare += 1
        elif _is_empty(process) or time.monotonic() > deadline:
            break
        else:
            time.sleep(0.0002)
    return found


def is_tracker(pid: int) -> bool:
    """Whether it is Python's, which unlinks the shared memory of processes once the last of them ended."""
    process, deadline = Path(f"/proc/{pid}"), time.monotonic() + _EXEC_S
    try:
        while not (found := (process / "cmdline").read_bytes()):
            if _is_empty(process) or time.monotonic() > deadline:
                break
            time.sleep(0.0002)
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in found


def _is_empty(process: Path) -> bool:
    """A zombie, or a thread of the kernel."""
    fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _KERNEL_THREAD)


def main(mark: str, folders: Sequence[str] = ()) -> int:
    """Wait for the owner's end, then kill and remove; the number of processes that would not die."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the owner decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while sys.stdin.buffer.read(1024):
        continue
    began = time.monotonic()
    while (left := marked(mark)) and time.monotonic() < began + _GIVE_UP_S:
        trackers_too = time.monotonic() > began + _TRACKERS_S
        for pid in left:
            if is_tracker(pid) and not trackers_too:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # the owner itself may have removed it
    return len(left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
