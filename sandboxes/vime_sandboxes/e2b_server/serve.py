"""Listen on an address, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TypeVar

import uvicorn

from vime_agents.errors import ConfigError
from vime_agents.sandbox import SandboxProvider, SandboxSpec
from vime_sandboxes.e2b_server.app import E2BServer, create_app

_Kind = TypeVar("_Kind", bound="_Server")

DEFAULT_PORT = 3000
SHUTDOWN_S = 5


def serve(
    provider: SandboxProvider,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    api_key: str | None = None,
    templates: Mapping[str, SandboxSpec] | None = None,
    max_sandboxes: int = 64,
    announce: Callable[[str], object] = print,
) -> None:
    """Run code that was written for E2B with no cloud: speak E2B's protocol, on sandboxes of this machine.

    Blocks until SIGINT or SIGTERM, then ends every sandbox. Point a client at it with the three variables
    that are announced at the start.

    Args:
        provider: makes the sandboxes; closed at the end.
        host: address to listen on. Anybody who can reach it and has the key can run programs here: keep the
            loopback address unless what is between is trusted (there is no encryption).
        port: to listen on; 0: any free one.
        api_key: what clients must send; None: a random one, announced at the start.
        templates: template name -> what a sandbox of it is; None: `base` alone, without network.
        max_sandboxes: further ones are refused.
        announce: gets a text with the address and the key.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    key = api_key or f"e2b_{secrets.token_hex(20)}"

    async def run() -> None:
        app = create_app(provider, api_key=key, templates=templates, max_sandboxes=max_sandboxes)
        server, listener = _listen(_Server, app, host, port)
        url = f"http://{host}:{listener.getsockname()[1]}"
        announce(f"export E2B_API_URL={url} E2B_SANDBOX_URL={url} E2B_API_KEY={key}")
        try:
            await server.serve(sockets=[listener])
        finally:
            listener.close()
            await provider.aclose()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def serving(app: E2BServer, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in the running event loop, beside other things, until the block is left; gives the URL."""
    server, listener = _listen(_GuestServer, app, host, port)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        starting = asyncio.create_task(server.up.wait())
        await asyncio.wait({task, starting}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if task.done():
            await task
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


class _Server(uvicorn.Server):
    """Ends the sandboxes first: commands under way would hold up its own end."""

    def __init__(self, config: uvicorn.Config, app: E2BServer) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.aclose()
        await super().shutdown(sockets)


class _GuestServer(_Server):
    """Leaves the process's signals alone, and says when it is up."""

    def __init__(self, config: uvicorn.Config, app: E2BServer) -> None:
        super().__init__(config, app)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(kind: type[_Kind], app: E2BServer, host: str, port: int) -> tuple[_Kind, socket.socket]:
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        server_header=False,
        lifespan="on",
    )
    return kind(config, app), listener
