"""The whole server as one ASGI application."""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse

from vime_agents.errors import SandboxError, SandboxUnavailable
from vime_agents.sandbox import SandboxProvider, SandboxSpec
from vime_sandboxes.e2b_server import control, files
from vime_sandboxes.e2b_server.boxes import BoxError, Boxes
from vime_sandboxes.e2b_server.filesystem import FilesystemService
from vime_sandboxes.e2b_server.processes import GONE, ProcessService

MAX_MESSAGE_BYTES = 16 << 20
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class E2BServer:
    """An ASGI application; end it with `aclose`, or by the lifespan protocol."""

    def __init__(self, boxes: Boxes, api_key: str) -> None:
        self._boxes, self._api_key = boxes, api_key
        self._http = Starlette(
            routes=[*control.routes(boxes), *files.routes(boxes)],
            lifespan=self._lifespan,
            exception_handlers={BoxError: _box_error, SandboxError: _sandbox_error, Exception: _any_error},
        )
        self._inside: dict[str, ASGIApp] = {
            "/process.Process/": ProcessASGIApplication(
                ProcessService(boxes), read_max_bytes=MAX_MESSAGE_BYTES
            ),
            "/filesystem.Filesystem/": FilesystemASGIApplication(
                FilesystemService(boxes), read_max_bytes=MAX_MESSAGE_BYTES
            ),
            "/files": self._http,
            "/health": self._http,
        }

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """One request. The key is for the control plane, a sandbox's own token for its inside."""
        if scope["type"] != "http":
            await self._http(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        target = next((found for prefix, found in self._inside.items() if path.startswith(prefix)), None)
        if target is None:
            refusal = None if _same(headers.get("x-api-key"), self._api_key) else (401, "invalid API key")
        else:
            box = self._boxes.running(headers.get("e2b-sandbox-id", ""))
            refusal = None if box is not None else (502, GONE)
            if box is not None and not _same(headers.get("x-access-token"), box.token):
                refusal = (401, "invalid access token")
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        await (target or self._http)(scope, receive, send)

    async def aclose(self) -> None:
        """End every sandbox, and make no more. Idempotent."""
        await self._boxes.aclose()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.aclose()


def create_app(
    provider: SandboxProvider,
    *,
    api_key: str,
    templates: Mapping[str, SandboxSpec] | None = None,
    max_sandboxes: int = 64,
) -> E2BServer:
    """An ASGI application that speaks E2B's protocol for sandboxes of `provider`.

    Args:
        provider: makes the sandboxes. It stays the caller's: it is not closed at shutdown, its sandboxes are.
        api_key: what a client has to send as X-API-KEY.
        templates: template name -> what a sandbox of it is; None: `base`, with 1 GiB and 256 processes.
            Network is given to a sandbox only where its template allows it and its client asks for it.
        max_sandboxes: further ones are refused with 429; paused ones count.
    """
    base = SandboxSpec(backend=provider.name, memory_mb=1024, max_processes=256, max_file_mb=512)
    return E2BServer(Boxes(provider, templates or {"base": base}, max_sandboxes), api_key)


def _same(given: str | None, secret: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), secret.encode())


async def _refuse(send: _Send, status: int, message: str) -> None:
    body = json.dumps({"code": status, "message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _answer(status: int, message: str) -> JSONResponse:
    return JSONResponse({"code": status, "message": message}, status)


async def _box_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BoxError)
    return _answer(error.status, error.message)


async def _sandbox_error(_: Request, error: Exception) -> JSONResponse:
    # What the backend cannot give is the client's to change; everything else is this server's trouble.
    return _answer(400 if isinstance(error, SandboxUnavailable) else 500, str(error))


async def _any_error(_: Request, error: Exception) -> JSONResponse:
    # The client cannot read an answer that is not JSON.
    return _answer(500, f"the server failed: {type(error).__name__}")
