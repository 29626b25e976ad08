"""Tools of MCP servers outside of any sandbox: a program of this machine (stdio), or an address (HTTP).

    class Browse(ToolEnv):
        toolsets = (mcp_stdio("python3", "server.py"), mcp_http("http://127.0.0.1:8000/mcp", prefix="web_"))

Each episode has a program, or a connection, of its own. A server that ends, or cannot be reached, is a
`ToolServerError`: it ends the episode and is never an answer to the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vime_agents.errors import ConfigError, ToolError, ToolServerError, VimeAgentsError
from vime_agents.tools import CallableTool, ToolHost, Toolset
from vime_tools.mcp_client import McpClient, require_mcp

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_COMPLAINT_CHARS = 2000


class _HostClient(McpClient):
    """What both kinds of servers share."""

    async def _ended(self) -> Exception:
        said = self._complaint()
        return ToolServerError(f"the MCP server {self.what} has ended{': ' if said else ''}{said}")

    def _complaint(self) -> str:
        """What is known of its end."""
        return ""

    async def _explain(self, what: str, error: BaseException) -> Exception:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, PARSE_ERROR

        error = _innermost(error)
        if isinstance(error, VimeAgentsError | ToolError):
            return error
        if isinstance(error, MCPError):
            if error.code == CONNECTION_CLOSED or error.message == "Session terminated":
                return await self._ended()
            if error.code != PARSE_ERROR:
                return ToolError(f"{what}: {error.message}")
        return ToolServerError(f"the MCP server {self.what}: {what}: {error!r:.1000}")


class StdioMcpServer(_HostClient):
    """A server that is a program of this machine, started for its one user."""

    def __init__(self, parameters: Any, call_timeout_s: float) -> None:
        self._parameters = parameters
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in _stop
        self._said = ""
        super().__init__(repr([parameters.command, *parameters.args]), call_timeout_s)

    @classmethod
    async def start(
        cls,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        prefix: str = "",
        start_timeout_s: float = 60.0,
        call_timeout_s: float = 30.0,
    ) -> StdioMcpServer:
        """Start `command`, and ask it for its tools.

        Args:
            command: the server, which speaks MCP over its standard input and output.
            env: in addition to PATH, HOME and the like; the rest of our environment stays here.
            cwd: None: our own working directory.
            prefix: put before each tool's name, so that two servers may have tools of one name.
            start_timeout_s: until it has listed its tools.
            call_timeout_s: for each call; a slower one is answered with an error.

        Raises:
            MissingDependencyError: no package `mcp`. ConfigError: no such program or folder.
            ToolServerError: the server ended, was too slow, or does not speak MCP.
        """
        require_mcp()
        from mcp.client.stdio import StdioServerParameters

        if not command:
            raise ConfigError("an MCP server needs a command, for example: 'python3', 'server.py'")
        program, *arguments = command
        parameters = StdioServerParameters(
            command=program, args=arguments, env=dict(env) if env else None, cwd=cwd
        )
        server = cls(parameters, call_timeout_s)
        await server._open(prefix, start_timeout_s)
        return server

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        from mcp.client.stdio import stdio_client

        return stdio_client(self._parameters, errlog=self._errors)  # type: ignore[arg-type]

    async def _stop(self) -> None:
        if self._closing.is_set():
            self._complaint()
            self._errors.close()

    def _complaint(self) -> str:
        if not self._errors.closed:
            self._errors.seek(0)
            self._said = self._errors.read()[-_COMPLAINT_CHARS:].strip()
        return self._said

    async def _explain(self, what: str, error: BaseException) -> Exception:
        if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
            return ConfigError(f"the MCP server {self.what} cannot be started: {error}")
        return await super()._explain(what, error)


class HttpMcpServer(_HostClient):
    """A connection to a server that somebody else runs ("Streamable HTTP")."""

    def __init__(self, url: str, headers: Mapping[str, str], call_timeout_s: float) -> None:
        self._url, self._headers = url, headers
        self._problem = ""
        super().__init__(url, call_timeout_s)

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        start_timeout_s: float = 60.0,
        call_timeout_s: float = 30.0,
    ) -> HttpMcpServer:
        """Connect, and ask for the tools.

        Args:
            url: of the endpoint, for example http://127.0.0.1:8000/mcp.
            headers: sent with every request, for example Authorization.
            prefix: put before each tool's name, so that two servers may have tools of one name.
            start_timeout_s: until it has listed its tools.
            call_timeout_s: for each call; a slower one is answered with an error.

        Raises:
            MissingDependencyError: no package `mcp`. ConfigError: not an address.
            ToolServerError: the server cannot be reached, was too slow, or does not speak MCP.
        """
        require_mcp()
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"the address of an MCP server begins with http:// or https://, got {url!r}")
        server = cls(url, headers or {}, call_timeout_s)
        await server._open(prefix, start_timeout_s)
        return server

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncGenerator[TransportStreams, None]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        # Calls have deadlines of their own.
        client = httpx2.AsyncClient(
            headers=dict(self._headers),
            timeout=httpx2.Timeout(10.0, read=None),
            event_hooks={"response": [_refuse_failures]},
        )
        async with client, streamable_http_client(self._url, http_client=client) as streams:
            yield streams

    async def _explain(self, what: str, error: BaseException) -> Exception:
        explained = await super()._explain(what, error)
        if asyncio.current_task() is self._running:  # it ends the connection
            self._problem = f"{_innermost(error)!r:.500}"
        return explained

    async def _ended(self) -> Exception:
        if asyncio.current_task() is not self._running:  # which learns the reason at about the same time
            await asyncio.wait({self._running}, timeout=1.0)
        return await super()._ended()

    def _complaint(self) -> str:
        return self._problem


async def _refuse_failures(response: Any) -> None:
    """The library would pass these on as if the tool had answered so."""
    is_json = response.headers.get("content-type", "").startswith("application/json")
    if response.status_code in (401, 403, 407, 429) or (response.status_code >= 500 and not is_json):
        raise ToolServerError(f"{response.url} answers {response.status_code} {response.reason_phrase}")


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class McpTools(Toolset):
    """The tools of a server that is there for one episode."""

    def __init__(self, host: ToolHost, start: Callable[[], Awaitable[McpClient]]) -> None:
        super().__init__(host)
        self._start = start
        self._server: McpClient | None = None

    @property
    def tools(self) -> Mapping[str, CallableTool]:
        """Known once the server runs."""
        return {} if self._server is None else {**self._server.tools}

    async def setup(self) -> None:
        """Start the server, or connect to it."""
        self._server = await self._start()

    async def close(self) -> None:
        """End the server, or the connection."""
        if self._server is not None:
            await self._server.aclose()


def mcp_stdio(*command: str, **options: Any) -> Callable[[ToolHost], McpTools]:
    """For `ToolEnv.toolsets`: the tools of a program; `options` are those of `StdioMcpServer.start`."""
    return lambda host: McpTools(host, lambda: StdioMcpServer.start(*command, **options))


def mcp_http(url: str, **options: Any) -> Callable[[ToolHost], McpTools]:
    """For `ToolEnv.toolsets`: the tools at an address; `options` are those of `HttpMcpServer.connect`."""
    return lambda host: McpTools(host, lambda: HttpMcpServer.connect(url, **options))
