"""A program inside an E2B sandbox as a byte stream: one side reads what the other writes.

E2B's client decodes output as text; the service itself, which is used here, carries bytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b import AsyncSandbox
from e2b.envd.client_async import as_stream, create_rpc_client, first_event
from e2b.envd.process import process_pb
from e2b.envd.process.process_connect import ProcessClient
from e2b.envd.utils import extract_start_pid
from protobuf import Oneof

START_TIMEOUT_S = 60.0
INPUT_TIMEOUT_S = 60.0
"""For one piece of input to arrive; the program has to take it."""
READ_BYTES = 1 << 20
INPUT_BYTES = 1 << 20
"""Of one request."""
KEEPALIVE = {"Keepalive-Ping-Interval": "50"}


class Channel:
    """One running program. Lives in the event loop that opened it."""

    def __init__(
        self,
        rpc: ProcessClient,
        events: AsyncGenerator[process_pb.StartResponse, Any],
        writer: asyncio.StreamWriter,
        pid: int,
    ) -> None:
        self.pid = pid
        self.ended: str | None = None
        """How the program itself ended; None while it runs, or when only the connection to it broke."""
        self.error: Exception | None = None
        """What broke the connection."""
        self.errors = bytearray()
        """The first 4 KiB of what the program wrote to standard error."""
        self._rpc, self._events, self._writer = rpc, events, writer
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, sandbox: AsyncSandbox, command: Sequence[str], *, user: str | None
    ) -> tuple[Channel, asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a program; reader and writer are its standard output and input. Raises as E2B's client."""
        rpc = create_rpc_client(ProcessClient, sandbox.envd_api_url, sandbox.connection_config)
        config = process_pb.ProcessConfig(cmd=command[0], args=list(command[1:]))
        headers = dict(KEEPALIVE)
        if user is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        # A pair of sockets between: their buffers hold a side back that is too fast for the other.
        ours, theirs = socket.socketpair()
        async with contextlib.AsyncExitStack() as unless_opened:
            unless_opened.callback(theirs.close)
            outer_reader, outer = await asyncio.open_unix_connection(sock=ours, limit=READ_BYTES)
            unless_opened.callback(outer.transport.abort)
            reader, writer = await asyncio.open_unix_connection(sock=theirs, limit=INPUT_BYTES)
            unless_opened.callback(writer.transport.abort)
            events = as_stream(
                rpc.start(process_pb.StartRequest(process=config, stdin=True), headers=headers)
            )
            unless_opened.push_async_callback(_closed, events)
            pid = extract_start_pid(await first_event(events, START_TIMEOUT_S), "start a program")
            unless_opened.pop_all()
        channel = cls(rpc, events, writer, pid)
        channel._tasks = [asyncio.create_task(channel._down()), asyncio.create_task(channel._up(reader))]
        return channel, outer_reader, outer

    async def close(self) -> None:
        """Let go of it; the program, and what it started, may go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Not `close`, which waits until all is sent that was written: nobody may read it any more. And a task
        # that was cancelled before it began has closed nothing.
        self._writer.transport.abort()
        await _closed(self._events)

    async def _down(self) -> None:
        writer = self._writer
        try:
            async for message in self._events:
                event = message.event.event if message.event is not None else None
                match event:
                    case Oneof(field="data", value=data):
                        piece = data.output
                        if isinstance(piece, Oneof) and piece.field == "stdout":
                            writer.write(piece.value)
                            await writer.drain()
                        elif isinstance(piece, Oneof) and piece.field == "stderr":
                            self.errors += piece.value[: max(0, 4096 - len(self.errors))]
                    case Oneof(field="end", value=end):
                        self.ended = end.status or f"exit status {end.exit_code}"
        except ConnectError as error:
            self.error = self.error or error
        except ConnectionError:
            pass  # our side was closed
        finally:
            writer.close()
            await _closed(self._events)

    async def _up(self, reader: asyncio.StreamReader) -> None:
        selector = process_pb.ProcessSelector(selector=Oneof("pid", self.pid))
        while data := await reader.read(INPUT_BYTES):
            piece = process_pb.ProcessInput(input=Oneof("stdin", data))
            request = process_pb.SendInputRequest(process=selector, input=piece)
            try:
                await self._rpc.send_input(request, timeout_ms=int(INPUT_TIMEOUT_S * 1000))
            except ConnectError as error:
                # A program that has ended is told by its end event; everything else breaks the connection.
                if error.code not in (Code.NOT_FOUND, Code.FAILED_PRECONDITION):
                    self.error = self.error or error
                    self._tasks[0].cancel()
                return


async def _closed(events: AsyncGenerator[Any, Any]) -> None:
    with contextlib.suppress(ConnectError, RuntimeError):
        await events.aclose()
