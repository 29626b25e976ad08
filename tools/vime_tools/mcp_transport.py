"""MCP's stdio transport over a program in a sandbox: one JSON message a line, both ways."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio

from vime_agents.errors import SandboxError
from vime_agents.sandbox import SandboxProcess

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 16 << 20
_MAX_COMPLAINT_BYTES = 4000


class ServerOutput:
    """What is known about the server's end."""

    def __init__(self) -> None:
        self.failure: SandboxError | None = None
        """The sandbox's own, when that ended it."""
        self.problem: str | None = None
        """What the server did wrong."""
        self.said = b""
        """The end of its standard error."""


@contextlib.asynccontextmanager
async def sandbox_transport(
    process: SandboxProcess, output: ServerOutput
) -> AsyncGenerator[TransportStreams, None]:
    """Streams of messages to and from `process`; it is killed at the end. `output` learns why it ended."""
    from mcp.shared.message import SessionMessage

    to_client, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_client:
            try:
                async for line in _lines(process, output):
                    await to_client.send(_parsed(line))
            except SandboxError as error:
                output.failure = error
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return  # the client is gone

    async def write() -> None:
        async with from_client:
            try:
                async for message in from_client:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.write(text.encode() + b"\n")
            except (SandboxError, BrokenPipeError):
                return  # the reader learns of it, and says why

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield read_stream, write_stream
        finally:
            with anyio.CancelScope(shield=True):
                with contextlib.suppress(SandboxError):  # it is gone with the sandbox
                    await process.kill()
                for stream in (read_stream, write_stream):
                    await stream.aclose()
            tasks.cancel_scope.cancel()


async def _lines(process: SandboxProcess, output: ServerOutput) -> AsyncGenerator[bytes, None]:
    """Lines of standard output, until it ends or one is too long."""
    pending = bytearray()
    async for kind, piece in process.output():
        if kind == "stderr":
            output.said = (output.said + piece)[-_MAX_COMPLAINT_BYTES:]
            continue
        start = len(pending)
        pending += piece
        while (end := pending.find(b"\n", start)) >= 0:
            line, start = bytes(pending[:end]), 0
            del pending[: end + 1]
            if line.strip():
                yield line
        if len(pending) > MAX_MESSAGE_BYTES:
            output.problem = f"it sent a message of more than {MAX_MESSAGE_BYTES} bytes"
            return


def _parsed(line: bytes) -> SessionMessage | Exception:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error
