"""Many byte streams to and from a sandbox over one program inside it: see `relay_program`.

Works on every backend, for it needs nothing but `spawn`. Lives on the input/output thread. What comes from
inside is not trusted: streams and bytes are counted, and a broken rule ends the relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Callable
from functools import cache

from vime_agents.errors import CommandNotFound, SandboxError, SandboxNotReady, SandboxUnsupported
from vime_agents.sandbox import Sandbox, SandboxProcess
from vime_sandboxes import relay_program as frames

START_TIMEOUT_S = 30.0
_CREDIT_STEP = frames.WINDOW // 4
_MAX_COMPLAINT_BYTES = 2000


class RelayStream:
    """One connection."""

    def __init__(self, relay: Relay, number: int) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relay, self.number = relay, number
        self._incoming: deque[bytes] = deque()
        self._room = frames.WINDOW
        """Bytes that the other side may still send."""
        self._taken = 0
        """Bytes that have been read here but not been given back as credit."""
        self._credit = frames.WINDOW
        self._read_ended = self._write_ended = False
        self._lost: str | None = None
        self._changed = asyncio.Event()

    async def read(self) -> bytes:
        """The next piece; empty at the end. Raises ConnectionResetError when it broke."""
        while not self._incoming and not self._read_ended and self._lost is None:
            await self._change()
        if self._incoming:
            piece = self._incoming.popleft()
            self._taken += len(piece)
            if self._taken >= _CREDIT_STEP and self._lost is None and not self._read_ended:
                taken, self._taken = self._taken, 0
                self._room += taken
                await self._relay.send(frames.CREDIT, self.number, taken)
            return piece
        if self._lost is not None and not self._read_ended:
            raise ConnectionResetError(self._lost)
        return b""

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side does not read. Raises ConnectionResetError, BrokenPipeError."""
        view = memoryview(data)
        while view:
            while self._credit <= 0 and self._lost is None:
                await self._change()
            if self._lost is not None or self._write_ended:
                raise BrokenPipeError(self._lost or "its end was written already")
            piece = view[: min(self._credit, frames.PIECE)]
            self._credit -= len(piece)
            view = view[len(piece) :]
            await self._relay.send(frames.DATA, self.number, len(piece), bytes(piece))

    async def end(self) -> None:
        """Let the other side read end-of-file."""
        if not self._write_ended and self._lost is None:
            self._write_ended = True
            await self._relay.send(frames.END, self.number, 0)
            self._forget_if_over()

    async def reset(self) -> None:
        """Close it at once; nothing happens when it is over."""
        if self._lost is None and not (self._read_ended and self._write_ended):
            self.lose("it was closed")
            self._relay.forget(self.number)
            with contextlib.suppress(ConnectionResetError):  # it is gone altogether
                await self._relay.send(frames.RESET, self.number, 0)

    def take(self, kind: int, value: int, data: bytes) -> None:
        """A frame about it. Raises ValueError when that breaks the rules."""
        if kind == frames.OPENED and not self.opened.done():
            self.opened.set_result(None)
        elif kind == frames.DATA:
            self._room -= len(data)
            if self._room < 0 or self._read_ended:
                raise ValueError("more data than was allowed")
            self._incoming.append(data)
        elif kind == frames.END:
            self._read_ended = True
            self._forget_if_over()
        elif kind == frames.CREDIT:
            self._credit = min(self._credit + value, frames.WINDOW)
        elif kind == frames.RESET:
            self.lose("the other side closed it")
            self._relay.forget(self.number)
        self._changed.set()

    def lose(self, reason: str) -> None:
        """It is gone."""
        self._lost = self._lost or reason
        if not self.opened.done():
            self.opened.set_exception(ConnectionRefusedError(reason))
            self.opened.exception()  # nobody may be waiting
        self._changed.set()

    def _forget_if_over(self) -> None:
        if self._read_ended and self._write_ended:
            self._relay.forget(self.number)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Relay:
    """The program inside, and its streams."""

    def __init__(self, process: SandboxProcess, on_open: Callable[[RelayStream], object] | None) -> None:
        self.ended: asyncio.Task[str] = asyncio.create_task(self._listen())
        """Done, with the reason, when the program has ended."""
        self._process, self._on_open = process, on_open
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams: dict[int, RelayStream] = {}
        self._next_number = 1  # odd; the program's are even
        self._writing = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        *,
        port: int | None = None,
        on_open: Callable[[RelayStream], object] | None = None,
    ) -> Relay:
        """Start it; connections to `port` of the inside's loopback interface are given to `on_open`.

        Raises:
            SandboxUnsupported: no python3 inside. SandboxNotReady: it did not start; the port may be taken.
        """
        command = ["python3", "-IS", "-c", _source(), *([] if port is None else [str(port)])]
        try:
            relay = cls(await sandbox.spawn(command, cwd="/"), on_open)
        except CommandNotFound as error:
            raise SandboxUnsupported("connections need python3 in the sandbox") from error
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wait({relay.ended, relay._ready}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            await asyncio.shield(relay.aclose())
            if isinstance(error, TimeoutError):
                raise SandboxNotReady(f"the relay inside did not start in {START_TIMEOUT_S:g} s") from error
            raise
        if relay.ended.done():
            raise SandboxNotReady(f"the relay inside did not start: {relay.ended.result()}")
        return relay

    async def connect(self, port: int) -> RelayStream:
        """A connection to a port inside. Raises ConnectionRefusedError."""
        number, self._next_number = self._next_number, self._next_number + 2
        stream = self._streams[number] = RelayStream(self, number)
        try:
            await self.send(frames.OPEN, number, port)
            await stream.opened
        except BaseException:
            await asyncio.shield(stream.reset())
            raise
        return stream

    async def send(self, kind: int, stream: int, value: int, data: bytes = b"") -> None:
        """Write one frame. Raises ConnectionResetError when the program is gone."""
        async with self._writing:
            try:
                # Not half a frame, whoever is cancelled.
                await asyncio.shield(self._process.write(frames.HEADER.pack(kind, stream, value) + data))
            except (SandboxError, BrokenPipeError) as error:
                raise ConnectionResetError(f"the relay inside is gone: {error}") from error

    def forget(self, number: int) -> None:
        """A stream is over."""
        self._streams.pop(number, None)

    async def aclose(self) -> None:
        """End it and every stream."""
        with contextlib.suppress(SandboxError):  # the sandbox is gone, and the program with it
            await self._process.kill()
        self.ended.cancel()
        await asyncio.wait({self.ended})

    async def _listen(self) -> str:
        reason, buffer, said = "it ended", bytearray(), b""
        try:
            async for kind, piece in self._process.output():
                if kind == "stdout":
                    buffer += piece
                    self._take(buffer)
                else:
                    said = (said + piece)[-_MAX_COMPLAINT_BYTES:]
            await self._process.wait()
        except SandboxError as error:
            reason = str(error)
        except ValueError as error:
            reason = f"it broke the protocol: {error}"
            with contextlib.suppress(SandboxError):
                await self._process.kill()
        finally:
            for stream in self._streams.values():
                stream.lose("the relay inside ended")
            self._streams.clear()
        return f"{reason}. {said.decode(errors='replace')}".strip(". ")

    def _take(self, buffer: bytearray) -> None:
        """Take every whole frame. Raises ValueError when one breaks the rules."""
        while len(buffer) >= frames.HEADER.size:
            kind, number, value = frames.HEADER.unpack_from(buffer)
            if kind == frames.DATA and value > frames.PIECE:
                raise ValueError(f"a frame of {value} bytes")
            size = frames.HEADER.size + (value if kind == frames.DATA else 0)
            if len(buffer) < size:
                return
            data = bytes(buffer[frames.HEADER.size : size])
            del buffer[:size]
            if kind == frames.READY:
                if not self._ready.done():
                    self._ready.set_result(None)
            elif kind == frames.OPEN:
                self._accept(number)
            elif number in self._streams:
                self._streams[number].take(kind, value, data)

    def _accept(self, number: int) -> None:
        if self._on_open is None or number % 2 or number in self._streams:
            raise ValueError("a connection that nobody asked for")
        if len(self._streams) >= frames.MAX_STREAMS:
            raise ValueError("too many connections")
        stream = self._streams[number] = RelayStream(self, number)
        stream.opened.set_result(None)
        self._on_open(stream)


async def pump(stream: RelayStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes both ways until both have ended; when one way breaks, so does the other. Closes both."""
    ways = [asyncio.create_task(_outward(stream, writer)), asyncio.create_task(_inward(reader, stream))]
    try:
        with contextlib.suppress(OSError):  # it broke; both ends see that
            await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        await stream.reset()


async def _outward(stream: RelayStream, writer: asyncio.StreamWriter) -> None:
    while piece := await stream.read():
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _inward(reader: asyncio.StreamReader, stream: RelayStream) -> None:
    while piece := await reader.read(frames.PIECE):
        await stream.write(piece)
    await stream.end()


@cache
def _source() -> str:
    return inspect.getsource(frames)
