"""Be another user on one thread, for as long as it takes to start a program.

`subprocess` can start a program as another user only by copying this process first (fork), which takes
milliseconds for each gigabyte that it has in memory, with the interpreter standing still. Started by a thread
that is the other user already, the program needs no copy (vfork). Linux keeps users by thread; it is the C
library that changes them for all threads at once (setresuid(2), "C library/kernel differences").
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator

_CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
"""setgroups, setresgid, setresuid."""
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_libc = ctypes.CDLL(None, use_errno=True)


def possible() -> bool:
    """Whether this process can: it is root in every way, on a processor whose calls are known here."""
    return platform.machine() in _CALLS and os.getresuid() == (0, 0, 0)


@contextlib.contextmanager
def thread_user(uid: int) -> Iterator[None]:
    """The calling thread is `uid`, in the group of that number and no other, until the block ends.

    What it starts meanwhile cannot become root again: of the privileges that the thread keeps in order to
    come back, a program gets none (capabilities(7), "Transformation of capabilities during execve()").
    """
    setgroups, setresgid, setresuid = _CALLS[platform.machine()]
    groups, gids = os.getgroups(), os.getresgid()
    dumpable = _libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    try:
        _call(setgroups, 0, None)
        _call(setresgid, uid, uid, uid)
        _call(setresuid, uid, uid, 0)
        yield
    finally:
        _call(setresuid, 0, 0, 0)
        _call(setresgid, *gids)
        _call(setgroups, len(groups), (ctypes.c_uint32 * len(groups))(*groups))
        # The kernel closes a process to its debuggers whenever one of its threads changes its user.
        _libc.prctl(_PR_SET_DUMPABLE, dumpable, 0, 0, 0)


def _call(number: int, *arguments: object) -> None:
    values = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    if _libc.syscall(ctypes.c_long(number), *values) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
