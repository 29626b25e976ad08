"""Tools that an MCP server inside a sandbox offers. Needs the package `mcp` here, not in the sandbox.

    class Browse(ToolEnv):
        sandbox_spec = SandboxSpec(...)

        async def setup(self):
            self.server = await McpServer.start(await self.sandbox(), ["python3", "server.py"])
            self.tools |= self.server.tools

        async def teardown(self):
            await self.server.aclose()

The server is started once and stays: what it remembers between calls is part of the episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_agents.errors import EnvFault, MissingDependencyError, SandboxDead, SandboxError, ToolError
from vime_agents.sandbox import Sandbox, SandboxProcess
from vime_agents.tools import RunSync

if TYPE_CHECKING:
    from mcp import Client

MAX_TOOLS = 512
MAX_ANSWER_CHARS = 1 << 20
"""A longer answer is cut, and says so."""


class McpTool:
    """One of them; see `vime_agents.tools.CallableTool`."""

    def __init__(self, server: McpServer, name: str, remote: Any) -> None:
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
            ToolError: bad arguments, the tool's own error, no answer in time, or the server has ended.
            SandboxError: the sandbox has ended.
        """
        try:
            given = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ToolError(f"arguments of {self.name} are not valid JSON: {error}") from error
        if not isinstance(given, dict):
            raise ToolError(f"arguments of {self.name} must be a JSON object")
        return await self._server.call(self._remote_name, given)


class McpServer:
    """A running server."""

    def __init__(self, sandbox: Sandbox, process: SandboxProcess, call_timeout_s: float) -> None:
        from vime_tools.mcp_transport import ServerOutput

        self.tools: dict[str, McpTool] = {}
        """By the name that the model uses."""
        self._sandbox, self._process, self._call_timeout_s = sandbox, process, call_timeout_s
        self._output = ServerOutput()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        # The client must be left by the task that entered it, and callers come and go.
        self._running = asyncio.create_task(self._run())

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        prefix: str = "",
        start_timeout_s: float = 60.0,
        call_timeout_s: float = 30.0,
    ) -> McpServer:
        """Start `command` inside, and ask it for its tools.

        Args:
            sandbox: where to; its end is the server's.
            command: the server, which speaks MCP over its standard input and output.
            env: in addition to the sandbox's own.
            cwd: None: the sandbox's working directory.
            prefix: put before each tool's name, so that two servers may have tools of one name.
            start_timeout_s: until it has listed its tools.
            call_timeout_s: for each call; a slower one is answered with an error.

        Raises:
            MissingDependencyError: no package `mcp` here. CommandNotFound: no such program inside.
            EnvFault: the server ended, was too slow, or does not speak MCP.
        """
        _require_mcp()
        server = cls(sandbox, await sandbox.spawn(command, env=env, cwd=cwd), call_timeout_s)
        try:
            async with asyncio.timeout(start_timeout_s):
                client = await asyncio.shield(server._client)
                await server._list_tools(client, prefix)
        except BaseException as error:
            await asyncio.shield(server.aclose())
            if isinstance(error, TimeoutError):
                raise EnvFault(
                    f"the MCP server {command!r} did not start in {start_timeout_s:g} s"
                ) from error
            if isinstance(error, ToolError):
                raise EnvFault(f"the MCP server {command!r}: {error}") from error
            raise
        return server

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool by the server's own name for it; the answer as text. Raises as `McpTool.call`."""
        if self._running.done():
            raise await self._ended()
        client = self._client.result()
        try:
            async with asyncio.timeout(self._call_timeout_s):
                result = await client.call_tool(name, dict(arguments))
        except TimeoutError as error:
            raise ToolError(f"{name} took longer than {self._call_timeout_s:g} s") from error
        except Exception as error:
            raise await self._explain(name, error) from error
        text = _text(result)
        if result.is_error:
            raise ToolError(text or f"{name} failed")
        return text

    async def aclose(self) -> None:
        """End the server. Idempotent."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        self._closing.set()
        # Also ends a client that still waits for the server's first word.
        with contextlib.suppress(SandboxError):
            await self._process.kill()
        await asyncio.wait({self._running})

    async def _run(self) -> None:
        """The life of the client, from its first word to its last."""
        from mcp import Client

        from vime_tools.mcp_transport import sandbox_transport

        try:
            async with Client(sandbox_transport(self._process, self._output)) as client:
                self._client.set_result(client)
                ended = asyncio.create_task(self._wait_for_end())
                closing = asyncio.create_task(self._closing.wait())
                await asyncio.wait({ended, closing}, return_when=asyncio.FIRST_COMPLETED)
                for task in (ended, closing):
                    task.cancel()
        except Exception as error:  # noqa: BLE001 - whatever the library raises here is told to the caller
            self._fail(await self._explain("start", error))
        finally:
            with contextlib.suppress(SandboxError):
                await self._process.kill()
            if not self._client.done():
                self._fail(await self._ended())

    def _fail(self, error: Exception) -> None:
        if not self._client.done():
            self._client.set_exception(error)
            self._client.exception()  # nobody may be waiting any more

    async def _wait_for_end(self) -> None:
        with contextlib.suppress(SandboxError):
            await self._process.wait()

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

    async def _explain(self, what: str, error: Exception) -> Exception:
        """What an error of the library's means to the caller."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        if isinstance(error, SandboxError | ToolError):
            return error
        if self._running.done() or self._output.failure or self._output.problem:
            return await self._ended()
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
            return ToolError(f"{what}: {error.message}")
        if await self._over():
            return await self._ended()
        return ToolError(f"{what}: {error!r:.1000}")

    async def _over(self) -> bool:
        """Whether the server ends just now: its streams end a moment before it does."""
        try:
            async with asyncio.timeout(1.0):
                await self._process.wait()
        except TimeoutError:
            return False
        except SandboxError as error:
            self._output.failure = error
        return True

    async def _ended(self) -> Exception:
        """Why the server is gone: the sandbox's end, or its own."""
        failure = self._output.failure
        if failure is None and not await self._sandbox.alive():
            failure = SandboxDead(f"sandbox {self._sandbox.id} is gone, and the MCP server with it")
        if failure is not None:
            return type(failure)(str(failure))
        how = self._output.problem
        if how is None:
            try:
                async with asyncio.timeout(1.0):
                    how = (await self._process.wait()).ended_by
            except (TimeoutError, SandboxError):
                how = "its output was closed"
        said = self._output.said.decode(errors="replace").strip()
        return ToolError(f"the MCP server has ended: {how}. {said}".strip())


def _require_mcp() -> None:
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
    text = "\n".join(parts)
    if len(text) > MAX_ANSWER_CHARS:
        return f"{text[:MAX_ANSWER_CHARS]}\n[{len(text) - MAX_ANSWER_CHARS} more characters were cut]"
    return text
