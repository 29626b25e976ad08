"""One conversation with a container: bytes in, and its standard output and error out of one connection."""

from __future__ import annotations

import asyncio
import contextlib
import struct

_HEADER = struct.Struct("!BxxxI")
_PIECE = 1 << 18
STDOUT, STDERR = 1, 2
_KEPT_ERRORS = 4096


class Stream:
    """The daemon prefixes each piece with which stream it is and how long it is; this takes it apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.errors = bytearray()
        """Start of standard error, as far as `readexactly` came across it."""
        self._reader = reader
        self._left = 0
        self._kind = STDOUT

    async def read(self, limit: int = _PIECE) -> tuple[int, bytes]:
        """STDOUT or STDERR, and the next piece of it; an empty one at the end. EOFError: it broke off."""
        while self._left == 0:
            try:
                header = await self._reader.readexactly(_HEADER.size)
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                return STDOUT, b""
            self._kind, self._left = _HEADER.unpack(header)
        data = await self._reader.read(min(self._left, limit))
        if not data:
            raise EOFError("the connection ended in the middle of a piece")
        self._left -= len(data)
        return self._kind, data

    async def readexactly(self, size: int) -> bytes:
        """`size` bytes of standard output; what comes on standard error meanwhile is kept in `errors`.

        Raises:
            EOFError: the end came first.
        """
        pieces: list[bytes] = []
        missing = size
        while missing:
            kind, data = await self.read(missing)
            if not data:
                raise asyncio.IncompleteReadError(b"".join(pieces), size)
            if kind == STDOUT:
                pieces.append(data)
                missing -= len(data)
            else:
                self.errors += data[: _KEPT_ERRORS - len(self.errors)]
        return b"".join(pieces)

    def end_input(self) -> None:
        """Let the other side read end-of-file; its output can still be read."""
        # Not `write_eof`: over TLS there is no half of a connection to close.
        with contextlib.suppress(OSError, NotImplementedError):
            self.writer.write_eof()

    def close(self) -> None:
        """End the conversation, whether or not what was written has been taken."""
        self.writer.transport.abort()
