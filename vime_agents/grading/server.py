"""The process that has the graders' modules in memory and forks a keeper for each grading.

    python -m vime_agents.grading.server FD

FD: a socket on which each message is the name of a module, with the connection of one grading.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys

from vime_agents.grading import keeper, processes
from vime_agents.grading.warm_up import warm_up

_POLL_MS = 500


def main() -> None:
    """Serve until the caller goes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    caller = os.getppid()
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    known: set[int] = set()  # keepers, and what modules start when they are imported
    while True:
        _reap(known)
        if not poll.poll(_POLL_MS):
            if os.getppid() != caller:  # the caller's forks still hold the other end
                return
            continue
        message, connections, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        before = processes.children(os.getpid())
        _import(message.decode())
        known |= processes.children(os.getpid()) - before
        pid = os.fork()
        if pid == 0:
            control.close()
            keeper.keep(connections[0])
        known.add(pid)
        os.close(connections[0])


def _import(module: str) -> None:
    # What fails here fails again in the grader, which tells its caller.
    with contextlib.suppress(Exception):
        importlib.import_module(module)
    warm_up()


def _reap(known: set[int]) -> None:
    """Take note of keepers that ended, and end what those left behind that were killed."""
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            known.discard(pid)
    for orphan in processes.children(os.getpid()) - known:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


if __name__ == "__main__":
    main()
