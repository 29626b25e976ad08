"""A command inside a sandbox that the owner reads from and writes to while it runs.

Neither side can fill the other's memory: output goes out against credit, and the owner never sends more input
than WINDOW before the program's pipe has taken it. Nothing here blocks the runner.
"""

from __future__ import annotations

import _struct as struct
import fcntl
import posix as os
import select

from vime_sandboxes.runner_frames import (
    CHUNK,
    ENDED,
    MIN_COST,
    PIPE_BYTES,
    REFUSED,
    STDERR,
    STDOUT,
    TAKEN,
    WINDOW,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Loop(Protocol):
        """What the runner's loop offers."""

        def watch(self, fd: int, handler: Callable[[], object], events: int) -> None:
            """Call `handler` whenever one of `events` has come for `fd`."""
            ...

        def unwatch(self, fd: int) -> None:
            """Stop that."""
            ...

        def send(self, request: int, kind: int, *fields: bytes) -> None:
            """Tell the owner."""
            ...


_F_SETPIPE_SZ = 1031
_FIONREAD = 0x541B
_FILE = struct.Struct("i")


def pipe() -> tuple[int, int]:
    """A pipe that holds PIPE_BYTES, or less where a user may not have as much."""
    ends = os.pipe()
    try:
        fcntl.fcntl(ends[1], _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # the user has too much in pipes already: it holds what the kernel gave it
        return ends
    return ends


def receive_files() -> list[int]:
    """Open files that the owner sends along with one byte."""
    import _socket  # slow to load, and needed only here

    channel = _socket.socket(fileno=os.dup(0))
    _, parts, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(2 * _FILE.size), _socket.MSG_CMSG_CLOEXEC)
    channel.close()
    return [number for _, _, numbers in parts for (number,) in _FILE.iter_unpack(numbers)]


class Spawned:
    """The streams of one SPAWN that are not files of the owner's."""

    def __init__(self, loop: Loop, request: int, streams: dict[int, int]) -> None:
        """`streams`: our ends, by number: 0, 1, 2."""
        self.totals = {STDOUT: 0, STDERR: 0}
        self._loop, self._request = loop, request
        self._stdin = streams.get(0)
        self._pending, self._taken, self._last = bytearray(), 0, False
        self._open = {kind: streams[n] for n, kind in ((1, STDOUT), (2, STDERR)) if n in streams}
        self._credit, self._dropping, self._paused = WINDOW, False, True
        for fd in streams.values():
            os.set_blocking(fd, False)
        if self._stdin is not None:
            loop.watch(self._stdin, self._write, 0)  # tells when nobody reads it any more
        self._resume()

    @property
    def ended(self) -> bool:
        """Whether both of its output streams ended."""
        return not self._open

    def feed(self, data: memoryview) -> None:
        """More input; nothing: end of file. It is not used any more afterwards."""
        if self._stdin is None:
            return
        self._last = self._last or not data
        if not self._pending:
            data = data[self._put(self._stdin, data) :]
        self._pending += data
        self._go_on()

    def grant(self, num_bytes: int) -> None:
        """Let more output through; less than 0: drop what comes from here on."""
        if num_bytes < 0:
            self._dropping = True
        self._credit += max(num_bytes, 0)
        if self._paused and (self._dropping or self._credit > 0):
            self._resume()

    def finish(self) -> None:
        """The program has ended: send what it has written, beyond the credit too; no more input."""
        for kind, fd in list(self._open.items()):
            (left,) = struct.unpack("i", fcntl.ioctl(fd, _FIONREAD, b"\0" * 4))
            if left:
                self._take(kind, min(left, CHUNK))
            else:
                self._read(kind)  # perhaps the end
        self._close_stdin()

    def _resume(self) -> None:
        self._paused = False
        for kind, fd in self._open.items():
            self._loop.watch(fd, lambda kind=kind: self._read(kind), select.POLLIN)

    def _read(self, kind: int) -> None:
        size = PIPE_BYTES if self._dropping else min(PIPE_BYTES, self._credit)
        if size > 0 and kind in self._open:
            self._take(kind, size)

    def _take(self, kind: int, size: int) -> None:
        fd = self._open[kind]
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return
        if not data:
            self._loop.unwatch(fd)
            os.close(fd)
            del self._open[kind]
            if not self._open:
                self._loop.send(self._request, ENDED)
            return
        self.totals[kind] += len(data)
        if self._dropping:
            return
        self._credit -= max(len(data), MIN_COST)
        self._loop.send(self._request, kind, data)
        if self._credit <= 0 and not self._paused:
            self._paused = True
            for fd in self._open.values():
                self._loop.unwatch(fd)

    def _write(self) -> None:
        if self._stdin is not None:
            del self._pending[: self._put(self._stdin, self._pending)]
            self._go_on()

    def _put(self, fd: int, data: bytearray | memoryview) -> int:
        """Write what the pipe takes now; how many bytes that was."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(fd, left) :]
        except (BlockingIOError, BrokenPipeError):  # `_go_on` finds out which
            pass
        size = len(data) - len(left)
        self._taken += size
        return size

    def _go_on(self) -> None:
        if self._stdin is None:
            return
        if self._taken and (not self._pending or self._taken >= WINDOW // 4):
            self._loop.send(self._request, TAKEN, str(self._taken).encode())
            self._taken = 0
        if self._last and not self._pending:
            self._close_stdin()
        elif _broken(self._stdin):
            self._loop.send(self._request, REFUSED)
            self._close_stdin()
        else:
            self._loop.watch(self._stdin, self._write, select.POLLOUT if self._pending else 0)

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._loop.unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._pending.clear()


def _broken(fd: int) -> bool:
    """Whether nobody is left who could read from this pipe."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
