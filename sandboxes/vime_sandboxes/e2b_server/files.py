"""E2B's HTTP service of one sandbox: its health, and whole files."""

from __future__ import annotations

import gzip
import zlib

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vime_agents.errors import (
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxPermissionError,
)
from vime_agents.sandbox import Sandbox
from vime_sandboxes.e2b_server.boxes import Box, BoxError, Boxes
from vime_sandboxes.e2b_server.processes import DEFAULT_USER, GONE, resolve

MAX_FILE_BYTES = 256 << 20
"""Of one file, in either direction."""


def routes(boxes: Boxes) -> list[Route]:
    """All of them; tokens are checked elsewhere."""
    files = _Files(boxes)
    return [
        Route("/health", files.health, methods=["GET"]),
        Route("/files", files.read, methods=["GET"]),
        Route("/files", files.write, methods=["POST"]),
    ]


class _Files:
    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def health(self, request: Request) -> Response:
        box, _ = self._box(request)
        if not await self._boxes.check(box):
            raise BoxError(502, GONE)
        return Response(status_code=204)

    async def read(self, request: Request) -> Response:
        box, sandbox = self._box(request)
        path = resolve(box, request.query_params.get("path", ""))
        try:
            content = await sandbox.read(path, max_bytes=MAX_FILE_BYTES)
        except SandboxError as error:
            raise _file_error(error) from error
        return Response(content, media_type="application/octet-stream")

    async def write(self, request: Request) -> Response:
        box, sandbox = self._box(request)
        written = []
        for name, data in await self._contents(request):
            path = resolve(box, name)
            try:
                await sandbox.write(path, data)
            except SandboxError as error:
                raise _file_error(error) from error
            written.append({"path": path, "name": path.rpartition("/")[2], "type": "file"})
        return JSONResponse(written)

    async def _contents(self, request: Request) -> list[tuple[str, bytes]]:
        """Path and content of every file that the request brings."""
        path = request.query_params.get("path")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/octet-stream":
            if path is None:
                raise BoxError(400, "the query parameter path is required")
            return [(path, _unpacked(await _body(request), request.headers.get("content-encoding")))]
        if not kind.startswith("multipart/"):
            raise BoxError(400, f"content type {kind!r}: multipart/form-data or application/octet-stream")
        if int(request.headers.get("content-length", MAX_FILE_BYTES + 1)) > MAX_FILE_BYTES:
            raise BoxError(
                413, f"files may have {MAX_FILE_BYTES} bytes at most, and their length must be told"
            )
        async with request.form() as form:
            parts = [part for part in form.getlist("file") if isinstance(part, UploadFile)]
            found = [(path or part.filename or "", await part.read()) for part in parts]
        if not all(name for name, _ in found):
            raise BoxError(400, "a file without a path")
        return found

    def _box(self, request: Request) -> tuple[Box, Sandbox]:
        box = self._boxes.running(request.headers.get("e2b-sandbox-id", ""))
        if box is None or box.sandbox is None:
            raise BoxError(502, GONE)
        if (user := request.query_params.get("username")) not in (None, "", DEFAULT_USER):
            raise BoxError(401, f"files are read and written as the user {DEFAULT_USER!r}, not {user!r}")
        return box, box.sandbox


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FILE_BYTES:
            raise BoxError(413, f"a file may have {MAX_FILE_BYTES} bytes at most")
    return bytes(body)


def _unpacked(body: bytes, encoding: str | None) -> bytes:
    if encoding in (None, "", "identity"):
        return body
    if encoding != "gzip":
        raise BoxError(400, f"content encoding {encoding!r}")
    try:
        unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        content = unpacker.decompress(body, MAX_FILE_BYTES)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise BoxError(400, f"the body is not gzip: {error}") from error
    if unpacker.unconsumed_tail:
        raise BoxError(413, f"a file may have {MAX_FILE_BYTES} bytes at most")
    return content


def _file_error(error: SandboxError) -> BoxError:
    statuses = (
        (SandboxDead, 502),
        (SandboxFileNotFound, 404),
        (SandboxPermissionError, 403),
        (SandboxOutputTooLarge, 413),
        (SandboxDiskFull, 507),
    )
    status = next((s for kind, s in statuses if isinstance(error, kind)), 400)
    return BoxError(status, GONE if status == 502 else str(error))
