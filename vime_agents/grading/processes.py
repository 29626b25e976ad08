"""Processes on Linux: who started whom, and how to end all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: none can leave the tree."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` ends; at once, if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def children(pid: int) -> set[int]:
    """The processes that `pid` started, or adopted."""
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    return found


def descendants(pid: int) -> set[int]:
    """Every process below `pid`. Exact only for what is stopped."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = children(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def end_descendants(timeout_s: float = 5.0) -> bool:
    """Kill everything below this process, however fast it forks; whether nothing is left.

    First all are stopped, until no new ones are found: what is stopped does not fork.
    """
    give_up = time.monotonic() + timeout_s
    stopped: set[int] = set()
    while (found := descendants(os.getpid())) - stopped and time.monotonic() < give_up:
        for pid in found - stopped:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    while time.monotonic() < give_up:
        for pid in descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        if not reap():
            return True
        time.sleep(0.001)
    return False


def reap() -> bool:
    """Take note of children that ended; whether there are others."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
