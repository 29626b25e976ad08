"""The life of a connection to an MCP server, and the server's tools as tools. Needs the package `mcp`.

What differs from one kind of server to another is in the classes below `McpClient`: `mcp_server` (in a
sandbox), `mcp_host` (a program of this machine, or an address).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from vime_agents.errors import (
    MissingDependencyError,
    ToolError,
    ToolServerError,
    VimeAgentsError,
)
from vime_agents.tools import RunSync, cut_output
from vime_tools.model_text import as_utf8

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams

MAX_TOOLS = 512
MAX_ANSWER_CHARS = 1 << 20
"""A longer answer is cut, and says so."""
CLOSE_TIMEOUT_S = 10.0


class McpTool:
    """A tool of a server; see `vime_agents.tools.CallableTool`. Its schema is the server's own."""

    def __init__(self, server: McpClient, name: str, remote: Any) -> None:
        self.name = name
        self._server, self._remote_name = server, remote.name
        function = {
            "name": name,
            "description": remote.description or "",
            "parameters": dict(remote.input_schema),
        }
        self.schema: dict[str, Any] = {"type": "function", "function": function}

    async def call(self, arguments: str, run_sync: RunSync) -> str:
        """Call it on JSON arguments; the answer as text.

        Raises:
            ToolError: bad arguments, the tool's own error, or no answer in time.
            EpisodeError: the server's end, as its class says.
        """
        try:
            given = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ToolError(f"arguments of {self.name} are not valid JSON: {error}") from error
        if not isinstance(given, dict):
            raise ToolError(f"arguments of {self.name} must be a JSON object")
        as_utf8(
            json.dumps(given, ensure_ascii=False), "arguments"
        )  # the library's connection would die of it
        return await self._server.call(self._remote_name, given)


class McpClient:
    """A connection to a running server, which ends when either side does."""

    def __init__(self, what: str, call_timeout_s: float) -> None:
        self.what = what
        """The server, in words for an error."""
        self.tools: dict[str, McpTool] = {}
        """By the name that the model uses."""
        self._call_timeout_s = call_timeout_s
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        # The client must be left by the task that entered it, and callers come and go.
        self._running = asyncio.create_task(self._run())

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool by the server's own name for it; the answer as text. Raises as `McpTool.call`."""
        if self._running.done():
            raise await self._ended()
        calling = asyncio.ensure_future(self._client.result().call_tool(name, dict(arguments)))
        either = {calling, self._running}
        try:
            await asyncio.wait(either, timeout=self._call_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done() and not self._running.done():
                raise ToolError(f"{name} took longer than {self._call_timeout_s:g} s")
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.wait({calling})
        if calling.cancelled():
            raise await self._ended()
        if (error := calling.exception()) is not None:
            raise await self._explain(name, error) from error
        result = calling.result()
        text = _text(result)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    async def aclose(self) -> None:
        """End the connection, and the server where it is ours. Idempotent."""
        await asyncio.shield(self._close())

    # ------------------------------------------------------------------ what the kinds of servers say

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        """Messages to and from the server."""
        raise NotImplementedError

    async def _until_end(self) -> None:
        """Return when the server has ended, if that can be seen."""
        await self._closing.wait()

    async def _stop(self) -> None:
        """End a server that is ours. May be called twice."""

    async def _ended(self) -> Exception:
        """Why the server is gone."""
        raise NotImplementedError

    async def _explain(self, what: str, error: BaseException) -> Exception:
        """What an error of the library's means to the caller."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------ internals

    async def _open(self, prefix: str, start_timeout_s: float) -> None:
        """Wait for the server, and ask it for its tools. Closed when that fails."""
        try:
            async with asyncio.timeout(start_timeout_s):
                client = await asyncio.shield(self._client)
                await self._list_tools(client, prefix)
        except BaseException as error:
            await asyncio.shield(self.aclose())
            if isinstance(error, TimeoutError) and not isinstance(error, VimeAgentsError):
                problem = f"the MCP server {self.what} did not start in {start_timeout_s:g} s"
                raise ToolServerError(problem) from error
            if isinstance(error, ToolError):
                raise ToolServerError(f"the MCP server {self.what}: {error}") from error
            raise

    async def _close(self) -> None:
        self._closing.set()
        await self._stop()
        if not self._client.done():  # it still waits for the server's first word
            self._running.cancel()
        done, _ = await asyncio.wait({self._running}, timeout=CLOSE_TIMEOUT_S)
        if not done:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        """The life of the client, from its first word to its last."""
        try:
            from mcp import Client

            async with Client(self._transport()) as client:
                self._client.set_result(client)
                ended = asyncio.create_task(self._until_end())
                closing = asyncio.create_task(self._closing.wait())
                try:
                    await asyncio.wait({ended, closing}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (ended, closing):
                        task.cancel()
        except Exception as error:  # noqa: BLE001 - whatever the library raises here is told to the caller
            self._fail(await self._explain("start", error))
        finally:
            await self._stop()
            if not self._client.done():
                self._fail(await self._ended())

    def _fail(self, error: Exception) -> None:
        if not self._client.done():
            self._client.set_exception(error)
            self._client.exception()  # nobody may be waiting any more

    async def _list_tools(self, client: Client, prefix: str) -> None:
        cursor: str | None = None
        while True:
            try:
                page = await client.list_tools(cursor=cursor)
            except Exception as error:
                raise await self._explain("the list of tools", error) from error
            for remote in page.tools:
                self.tools[prefix + remote.name] = McpTool(self, prefix + remote.name, remote)
            cursor = page.next_cursor
            if len(self.tools) > MAX_TOOLS:
                raise ToolError(f"more than {MAX_TOOLS} tools")
            if not cursor or not page.tools:
                return


def require_mcp() -> None:
    """Raises MissingDependencyError."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("mcp", "mcp", "tools of an MCP server") from error


def _text(result: Any) -> str:
    """The answer as the model reads it."""
    parts = []
    for block in result.content:
        if block.type == "text":
            parts.append(block.text)
        elif block.type == "resource" and hasattr(block.resource, "text"):
            parts.append(block.resource.text)
        else:
            kind = getattr(block, "mime_type", None) or block.type
            parts.append(f"[{kind}, which is not shown]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, default=str))
    return cut_output("\n".join(parts), MAX_ANSWER_CHARS)
