"""Questions and answers between the owner and the runner in a sandbox. Lives on the input/output thread.

The other side is not trusted: every length is bounded, and anything unexpected ends the connection.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vime_agents.errors import SandboxDead, SandboxTimeout
from vime_sandboxes import runner

_MAX_PAYLOAD = runner.CHUNK + 4096


@dataclass(slots=True)
class Call:
    """One question and what has been answered so far."""

    answer: asyncio.Future[tuple[int, list[bytes]]]
    """Kind and fields of the last frame."""
    room: int
    """Bytes of output that may still come."""
    stdout: list[bytes] = field(default_factory=list)
    stderr: list[bytes] = field(default_factory=list)


class Connection:
    """The socket to one runner."""

    def __init__(self, writer: asyncio.StreamWriter, on_lost: Callable[[str], str]) -> None:
        self.lost: str | None = None
        """Why it is gone, for a person."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer = writer
        self._on_lost = on_lost
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, channel: socket.socket, on_lost: Callable[[str], str]) -> Connection:
        """Connect; `on_lost(reason)` is called once, at the end, and words the final reason."""
        reader, writer = await asyncio.open_unix_connection(sock=channel, limit=runner.CHUNK)
        connection = cls(writer, on_lost)
        connection._task = asyncio.create_task(connection._listen(reader))
        return connection

    async def call(
        self, kind: int, fields: Sequence[bytes], *, timeout_s: float, room: int = 0
    ) -> tuple[int, list[bytes], Call]:
        """Ask, and wait for the answer. A cancelled EXEC is killed inside.

        Raises:
            SandboxDead: the connection is, or gets, lost. SandboxTimeout: no answer in time.
        """
        if self.lost is not None:
            raise SandboxDead(self.lost)
        request = next(self._ids)
        call = Call(asyncio.get_running_loop().create_future(), room)
        self._calls[request] = call
        try:
            self._send(request, kind, fields)
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
                kind, answer = await call.answer
        except TimeoutError as error:
            raise SandboxTimeout(f"the sandbox did not answer in {timeout_s:g} s") from error
        except ConnectionError as error:
            raise SandboxDead(self.lost or f"the connection broke: {error}") from error
        except asyncio.CancelledError:
            if kind == runner.EXEC and self.lost is None:
                self._send(0, runner.KILL, [str(request).encode()])
            raise
        finally:
            self._calls.pop(request, None)
        return kind, answer, call

    def close(self) -> None:
        """Stop listening."""
        self._writer.close()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._lose("it was closed")

    def _send(self, request: int, kind: int, fields: Sequence[bytes]) -> None:
        payload = runner.pack(fields)
        self._writer.write(runner.HEADER.pack(len(payload), request, kind) + payload)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        reason = "it was killed, or crashed"
        try:
            while True:
                header = await reader.readexactly(runner.HEADER.size)
                size, request, kind = runner.HEADER.unpack(header)
                if size > _MAX_PAYLOAD:
                    raise ValueError(f"a frame of {size} bytes")
                fields = runner.unpack(await reader.readexactly(size))
                if kind == runner.BYE:
                    reason = "its time to live is over"
                elif kind == runner.READY:
                    self.ready.set_result(None)
                elif request in self._calls:
                    self._take(self._calls[request], kind, fields)
        except (EOFError, ConnectionError):
            pass  # the usual end; `reason` says what is known
        except (ValueError, IndexError, asyncio.InvalidStateError) as error:
            reason = f"it broke the protocol: {error}"
        self._lose(reason)

    def _take(self, call: Call, kind: int, fields: list[bytes]) -> None:
        if kind in (runner.STDOUT, runner.STDERR):
            call.room -= len(fields[0])
            if call.room < 0:
                raise ValueError("more output than was asked for")
            (call.stdout if kind == runner.STDOUT else call.stderr).append(fields[0])
        elif not call.answer.done():
            call.answer.set_result((kind, fields))

    def _lose(self, reason: str) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        self.lost = self._on_lost(reason)
        for future in (self.ready, *(c.answer for c in self._calls.values())):
            if not future.done():
                future.set_exception(SandboxDead(self.lost))
                future.exception()  # nobody may be waiting
        self._writer.close()
