"""Find and kill everything that a command inside a sandbox has started."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal` costs 4 ms to import, for enums
import posix as os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

EXEC_VARIABLE = "VIME_EXEC"
"""Set for every command, so that processes which left its session can still be found."""
_KILL_TIMEOUT_S = 5.0
_EXEC_TIMEOUT_S = 0.05
_EXEC_TRIES = 20
"""Whatever the time: on a busy machine all of it may pass between two of them."""
_KERNEL_THREAD = 0x200000  # PF_KTHREAD of linux/sched.h
_MOST_BYTES = 1 << 23
"""Arguments and environment have at most 6 MiB, see execve(2)."""


def kill_tree(pid: int, mark: str | None) -> None:
    """Kill a command and everything it started, whatever session or parent that has by now, and see it dead.

    Everything is stopped before anything is killed: at its process limit a fork bomb can only replace what
    dies, and what is stopped neither dies nor forks.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        new = {p for p in tree(pid, mark) - seen if _runs(p)}
        _signal_all(new, _signal.SIGSTOP)
        seen |= new
        if new:
            continue
        if not any(_runs(p) for p in seen):
            return
        _signal_all(seen, _signal.SIGKILL)
        time.sleep(0.001)
    if os.getpid() == 1:
        _signal_all({-1}, _signal.SIGKILL)  # hopeless: all but process 1


def tree(pid: int, mark: str | None) -> set[int]:
    """Its session, processes that carry `mark` as their EXEC_VARIABLE, and all their descendants.

    Never the caller itself.
    """
    line = None if mark is None else f"\0{EXEC_VARIABLE}={mark}\0".encode()
    me = os.getpid()
    parents: dict[int, int] = {}
    found = {pid}
    deadline = time.monotonic() + _EXEC_TIMEOUT_S
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        try:
            fields = _stat(int(name))
            parents[int(name)] = int(fields[1])
            if int(fields[3]) == pid or (
                line is not None and line in b"\0" + _environment(int(name), deadline)
            ):
                found.add(int(name))
        except OSError:  # it ended meanwhile
            continue
    while True:
        more = {p for p, parent in parents.items() if parent in found} - found
        if not more:
            return found - {me}
        found |= more


def _environment(pid: int, deadline: float) -> bytes:
    """What it was started with.

    While a process becomes another program (execve) it shows none, for a moment that is waited out: Linux
    does not know yet where it ends. One that hides it for good (PR_SET_MM_MAP) is not waited for for ever.
    """
    tries = 0
    while not (found := _slurp(f"/proc/{pid}/environ")):
        fields, tries = _stat(pid), tries + 1
        start, end = fields[47:49]  # env_start, env_end
        if start == end != b"0" or fields[0] in (b"Z", b"X") or int(fields[6]) & _KERNEL_THREAD:
            break
        if tries >= _EXEC_TRIES and time.monotonic() > deadline:
            break
        time.sleep(0.0002)
    return found


def _runs(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except OSError:
        return False


def _stat(pid: int) -> list[bytes]:
    """Its status from proc(5), from the third field (the state) on."""
    return _slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _slurp(path: str) -> bytes:
    # At one go: what is read on after the process became another program is empty.
    with open(path, "rb", buffering=0) as file:
        return file.read(_MOST_BYTES)


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
