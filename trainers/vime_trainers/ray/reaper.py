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
_EXEC_TRIES = 20
"""Whatever the time: on a busy machine all of it may pass between two of them."""
_KERNEL_THREAD = 0x200000  # PF_KTHREAD of linux/sched.h
_MOST_BYTES = 1 << 23
"""Arguments and environment have at most 6 MiB, see execve(2)."""


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
    """What it was started with."""
    return _started_with(process, "environ", 47, deadline)


def is_tracker(pid: int) -> bool:
    """Whether it is Python's, which unlinks the shared memory of processes once the last of them ended."""
    try:
        found = _started_with(Path(f"/proc/{pid}"), "cmdline", 45, time.monotonic() + _EXEC_S)
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in found


def _started_with(process: Path, name: str, start_field: int, deadline: float) -> bytes:
    """Its environment or its arguments.

    While a process becomes another program (execve) it shows neither, for a moment that is waited out: Linux
    does not know yet where they begin and end (arg_start, ..., env_end in `stat`).
    """
    tries = 0
    while not (found := _at_one_go(process / name)):
        fields, tries = (process / "stat").read_bytes().rpartition(b")")[2].split(), tries + 1
        start, end = fields[start_field : start_field + 2]
        if start == end != b"0" or fields[0] in (b"Z", b"X") or int(fields[6]) & _KERNEL_THREAD:
            break
        if tries >= _EXEC_TRIES and time.monotonic() > deadline:
            break
        time.sleep(0.0002)
    return found


def _at_one_go(file: Path) -> bytes:
    # What is read on after the process became another program is empty.
    with file.open("rb", buffering=0) as source:
        return source.read(_MOST_BYTES)


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
