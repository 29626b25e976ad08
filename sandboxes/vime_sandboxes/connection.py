"""Frames between the owner and the runner in a sandbox. Lives on the input/output thread.

The other side is not trusted: every length is bounded, and anything unexpected ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vime_agents.errors import SandboxDead, SandboxTimeout
from vime_sandboxes import runner_frames as frames

_MAX_PAYLOAD = frames.CHUNK + 4096
_PAUSE_S = 0.001


class Reader(Protocol):
    """Where frames come from, such as an `asyncio.StreamReader`."""

    async def readexactly(self, n: int, /) -> bytes:
        """Raises EOFError, ConnectionError."""
        ...


class Writer(Protocol):
    """Where frames go to, such as an `asyncio.StreamWriter`."""

    def write(self, data: bytes, /) -> None:
        """Send it, now or soon."""

    async def drain(self) -> None:
        """Wait while too much is waiting to be sent."""
        ...

    def close(self) -> None:
        """Send no more."""


class Listener(Protocol):
    """Takes all frames of one request."""

    def take(self, kind: int, fields: list[bytes]) -> None:
        """One frame. Raises ValueError when it cannot be."""

    def lose(self, error: SandboxDead) -> None:
        """There will be no more."""


@dataclass(slots=True)
class Call:
    """One question and what has been answered so far."""

    answer: asyncio.Future[tuple[int, list[bytes]]]
    """Kind and fields of the last frame."""
    room: int
    """Bytes of output that may still come."""
    stdout: list[bytes] = field(default_factory=list)
    stderr: list[bytes] = field(default_factory=list)

    def take(self, kind: int, fields: list[bytes]) -> None:
        """One frame: output, or the answer."""
        if kind in (frames.STDOUT, frames.STDERR):
            self.room -= len(fields[0])
            if self.room < 0:
                raise ValueError("more output than was asked for")
            (self.stdout if kind == frames.STDOUT else self.stderr).append(fields[0])
        elif not self.answer.done():
            self.answer.set_result((kind, fields))

    def lose(self, error: SandboxDead) -> None:
        """There will be no answer."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # nobody may be waiting


class Connection:
    """The stream to one runner."""

    def __init__(self, reader: Reader, writer: Writer, on_lost: Callable[[str], str | SandboxDead]) -> None:
        """Listen; `on_lost(reason)` is called once, at the end, and words the final reason."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost: SandboxDead | None = None
        self._writer = writer
        self._on_lost = on_lost
        self._listeners: dict[int, Listener] = {}
        self._ids = itertools.count(1)
        self._task = asyncio.create_task(self._listen(reader))

    @property
    def lost(self) -> SandboxDead | None:
        """Why it is gone; None while it is there."""
        # A new one each time: whoever raises it adds a traceback.
        return None if self._lost is None else type(self._lost)(str(self._lost))

    def subscribe(self, listener: Listener) -> int:
        """A new request, all of whose answers go to `listener`. Raises SandboxDead."""
        if self.lost is not None:
            raise self.lost
        request = next(self._ids)
        self._listeners[request] = listener
        return request

    def unsubscribe(self, request: int) -> None:
        """Ignore what else comes."""
        self._listeners.pop(request, None)

    async def call(
        self, kind: int, fields: Sequence[bytes], *, timeout_s: float, room: int = 0
    ) -> tuple[int, list[bytes], Call]:
        """Ask, and wait for the answer. A cancelled EXEC is killed inside.

        Raises:
            SandboxDead: the connection is, or gets, lost. SandboxTimeout: no answer in time.
        """
        call = Call(asyncio.get_running_loop().create_future(), room)
        request = self.subscribe(call)
        try:
            self.send(request, kind, fields)
            return *await self.answer(call, timeout_s), call
        except asyncio.CancelledError:
            if kind == frames.EXEC:
                self.kill(request)
            raise
        finally:
            self.unsubscribe(request)

    async def answer(self, call: Call, timeout_s: float) -> tuple[int, list[bytes]]:
        """Wait for what was asked. Raises as `call` does."""
        async with _in_time(timeout_s):
            await self.drain()
            return await call.answer

    def kill(self, request: int) -> None:
        """Kill an EXEC or SPAWN that nobody waits for any more."""
        if self._lost is None:
            self.send(0, frames.KILL, [str(request).encode()])

    def send(self, request: int, kind: int, fields: Sequence[bytes | memoryview]) -> None:
        """Send one frame."""
        size = sum(frames.LENGTH.size + len(f) for f in fields)
        parts: list[bytes | memoryview] = [frames.HEADER.pack(size, request, kind)]
        for content in fields:
            parts += [frames.LENGTH.pack(len(content)), content]
        self._writer.write(b"".join(parts))

    async def hand_over(self, files: Sequence[int], timeout_s: float) -> None:
        """Give the runner open files, over a Unix socket; the SPAWN that they are for has to be sent next.

        Raises as `call` does.
        """
        assert isinstance(self._writer, asyncio.StreamWriter)
        transport = self._writer.transport
        room = select.poll()
        with transport.get_extra_info("socket").dup() as channel:
            room.register(channel, select.POLLOUT)
            # Past the transport, so only when nothing waits there. A writable socket is at most a quarter
            # full (unix(7) does not say so, the kernel's `unix_writable` does): there is room for both.
            async with _in_time(timeout_s):
                while transport.get_write_buffer_size() or not room.poll(0):
                    await asyncio.sleep(_PAUSE_S)
                    if self.lost is not None:
                        raise self.lost
            try:
                channel.send(frames.HEADER.pack(0, 0, frames.FILES))
                socket.send_fds(channel, [b"\0"], list(files))
            except ConnectionError as error:
                raise self.lost or SandboxDead(f"the connection broke: {error}") from error

    async def drain(self) -> None:
        """Wait while too much is waiting to be sent. Raises SandboxDead."""
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise self.lost or SandboxDead(f"the connection broke: {error}") from error

    def close(self, reason: str = "it was closed") -> None:
        """Stop listening."""
        self._writer.close()
        if self._task is not asyncio.current_task():
            self._task.cancel()
        self._lose(reason)

    async def _listen(self, reader: Reader) -> None:
        reason = "it was killed, or crashed"
        try:
            while True:
                header = await reader.readexactly(frames.HEADER.size)
                size, request, kind = frames.HEADER.unpack(header)
                if size > _MAX_PAYLOAD:
                    raise ValueError(f"a frame of {size} bytes")
                fields = frames.unpack(await reader.readexactly(size))
                if kind == frames.BYE:
                    reason = "its time to live is over"
                elif kind == frames.READY:
                    self.ready.set_result(None)
                elif request in self._listeners:
                    self._listeners[request].take(kind, fields)
        except (EOFError, ConnectionError):
            pass  # the usual end; `reason` says what is known
        except (ValueError, IndexError, asyncio.InvalidStateError) as error:
            reason = f"it broke the protocol: {error}"
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = SandboxDead(reason)
        worded = self._on_lost(reason)
        self._lost = worded if isinstance(worded, SandboxDead) else SandboxDead(worded)
        if not self.ready.done():
            self.ready.set_exception(self.lost or self._lost)
            self.ready.exception()  # nobody may be waiting
        for listener in self._listeners.values():
            listener.lose(self.lost or self._lost)
        self._writer.close()


@contextlib.asynccontextmanager
async def _in_time(timeout_s: float) -> AsyncIterator[None]:
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise SandboxTimeout(
            f"the sandbox did not answer in {timeout_s:g} s",
            limit="answer",
            limit_s=timeout_s,
            elapsed_s=time.monotonic() - started,
        ) from error
