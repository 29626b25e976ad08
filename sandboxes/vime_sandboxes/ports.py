"""Reach a server that runs in a sandbox, on any backend, without a network.

stream = await connect(sandbox, 8000)             # bytes both ways
async with forward(sandbox, 8000) as port:        # http://127.0.0.1:{port} here leads to :8000 there
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from vime_agents.errors import SandboxError
from vime_agents.sandbox import Sandbox
from vime_sandboxes.io_thread import on_io_thread
from vime_sandboxes.relay import Relay, RelayStream, pump

# One relay for each sandbox, on the input/output thread only.
_relays: WeakKeyDictionary[Sandbox, asyncio.Task[Relay]] = WeakKeyDictionary()


class PortStream:
    """A connection to a port inside. Works from any event loop."""

    def __init__(self, stream: RelayStream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        """The next piece; empty at the end. Raises ConnectionResetError when it broke."""
        return await on_io_thread(self._stream.read())

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side does not read. Raises BrokenPipeError, ConnectionResetError."""
        await on_io_thread(self._stream.write(data))

    async def end(self) -> None:
        """Let the other side read end-of-file."""
        await on_io_thread(self._stream.end())

    async def close(self) -> None:
        """Close it at once. Idempotent."""
        await on_io_thread(self._stream.reset())


async def connect(sandbox: Sandbox, port: int) -> PortStream:
    """Connect to a port of the sandbox's loopback interface.

    Raises:
        ConnectionRefusedError: nobody listens there. SandboxUnsupported: no python3 inside.
        SandboxNotReady: the program inside that carries the bytes did not start.
    """
    return PortStream(await on_io_thread(_connect(sandbox, port)))


@contextlib.asynccontextmanager
async def forward(sandbox: Sandbox, port: int, *, local_port: int = 0) -> AsyncIterator[int]:
    """Listen on 127.0.0.1 and pass connections on to a port inside; gives the port here (0: any free one).

    Every program of this machine can connect to it.
    """
    listener = _Listener(sandbox, port)
    try:
        yield await on_io_thread(listener.open(local_port))
    finally:
        await asyncio.shield(on_io_thread(listener.close()))


async def _connect(sandbox: Sandbox, port: int) -> RelayStream:
    while True:
        starting = _relays.get(sandbox)
        if starting is None or (starting.done() and (starting.exception() or starting.result().ended.done())):
            starting = _relays[sandbox] = asyncio.ensure_future(Relay.start(sandbox))
        relay = await asyncio.shield(starting)
        if not relay.ended.done():
            return await relay.connect(port)


class _Listener:
    """Accepts by itself: asyncio's server of Python 3.11 loses a connection that comes while it closes."""

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox, self._target = sandbox, port
        self._accepting: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self, local_port: int) -> int:
        listener = socket.create_server(("127.0.0.1", local_port))
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listener))
        self._accepting.add_done_callback(lambda _: listener.close())
        return listener.getsockname()[1]

    async def close(self) -> None:
        tasks = [*self._serving, *([] if self._accepting is None else [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            reader, writer = await asyncio.open_connection(sock=connection)
            task = asyncio.create_task(self._serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(lambda _, writer=writer: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await pump(await _connect(self._sandbox, self._target), reader, writer)
        except (SandboxError, ConnectionError):
            writer.transport.abort()  # as a port does where nobody listens
