"""Tools that an MCP server inside a sandbox offers. Needs the package `mcp` here, not in the sandbox.

    class Browse(ToolEnv):
        sandbox_spec = SandboxSpec(...)

        async def setup(self):
            self.server = await McpServer.start(await self.sandbox(), ["python3", "server.py"])
            self.tools |= self.server.tools

        async def teardown(self):
            await self.server.aclose()

Such a server is started once and stays: what it remembers between calls is part of the episode.
An agent that runs programs in the same sandbox could end it, so its end is a tool's error and the episode
goes on. Servers outside are in `mcp_host`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from vime_agents.errors import SandboxDead, SandboxError, ToolError
from vime_agents.sandbox import Sandbox, SandboxProcess
from vime_tools.mcp_client import McpClient, McpTool, require_mcp

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

__all__ = ["McpServer", "McpTool"]


class McpServer(McpClient):
    """A server that runs in a sandbox."""

    def __init__(
        self, sandbox: Sandbox, process: SandboxProcess, command: Sequence[str], call_timeout_s: float
    ) -> None:
        from vime_tools.mcp_transport import ServerOutput

        self._sandbox, self._process = sandbox, process
        self._output = ServerOutput()
        super().__init__(repr(command), call_timeout_s)

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
            ToolServerError: the server ended, was too slow, or does not speak MCP.
        """
        require_mcp()
        server = cls(sandbox, await sandbox.spawn(command, env=env, cwd=cwd), command, call_timeout_s)
        await server._open(prefix, start_timeout_s)
        return server

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        from vime_tools.mcp_transport import sandbox_transport

        return sandbox_transport(self._process, self._output)

    async def _until_end(self) -> None:
        with contextlib.suppress(SandboxError):
            await self._process.wait()

    async def _stop(self) -> None:
        # Also ends a client that still waits for the server's first word.
        with contextlib.suppress(SandboxError):
            await self._process.kill()

    async def _explain(self, what: str, error: BaseException) -> Exception:
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
        except SandboxError as error:  # among them a TimeoutError
            self._output.failure = error
        except TimeoutError:
            return False
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
