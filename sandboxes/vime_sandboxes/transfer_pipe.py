"""Our end of a pipe to a program in a sandbox: read or written by one thread, without frames between.

Nobody inside can hold the thread for ever: it goes on only while the program runs, and stops when it is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Iterable, Iterator

_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18


class PipeEnd:
    """Makes the pipe, too. `other` is the program's end, its standard `stream`."""

    def __init__(self, *, to_read: bool) -> None:
        read, write = os.pipe()
        self.stream = "stdout" if to_read else "stdin"
        self.other, self._fd = (write, read) if to_read else (read, write)
        os.set_blocking(self._fd, False)
        with contextlib.suppress(
            OSError
        ):  # this user has too much in pipes: it holds what the kernel gave it
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._told = os.eventfd(0, os.EFD_CLOEXEC)
        self._program_ended = self._given_up = False
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN if to_read else select.POLLOUT)
        self._poll.register(self._told, select.POLLIN)

    def program_ended(self) -> None:
        """What is in the pipe is all: others inside who hold its end are not waited for."""
        self._program_ended = True
        self._tell()

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self._given_up = True
        self._tell()

    def pieces(self) -> Iterator[memoryview]:
        """What the program writes; each piece is valid until the next."""
        buffer = memoryview(bytearray(_READ_BYTES))
        while not self._given_up:
            last = self._program_ended
            try:
                size = os.readv(self._fd, [buffer])
            except BlockingIOError:
                if last:
                    return
                self._poll.poll()
                continue
            if not size:
                return
            yield buffer[:size]

    def write(self, blocks: Iterable[bytes]) -> None:
        """Let the program read `blocks` and then end-of-file. Raises BrokenPipeError: it reads no more."""
        for block in blocks:
            left = memoryview(block)
            while left:
                last = self._program_ended
                if self._given_up:
                    raise BrokenPipeError
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:
                    if last:
                        raise BrokenPipeError from None
                    self._poll.poll()
        self._close_ours()

    def close_other(self) -> None:
        """The program has its own by now."""
        other, self.other = self.other, -1
        if other >= 0:
            os.close(other)

    def close(self) -> None:
        """Close everything; no thread may be using it."""
        self.close_other()
        self._close_ours()
        told, self._told = self._told, -1
        os.close(told)

    def _tell(self) -> None:
        if self._told >= 0:
            os.eventfd_write(self._told, 1)

    def _close_ours(self) -> None:
        ours, self._fd = self._fd, -1
        if ours >= 0:
            os.close(ours)
