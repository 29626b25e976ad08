"""Read a tar stream that nobody vouches for.

Our own reader rather than `tarfile`: it takes the stream as it comes, keeps at most one header in memory, and
knows files, folders and links only. Every other kind, every malformed number and every surplus is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from vime_agents.errors import SandboxError

HEADER_BYTES = 512
MAX_META_BYTES = 1 << 20
"""Most bytes of one long name, or of one extended header."""
MAX_TRAILING_BYTES = 1 << 20
"""Most bytes after the end of the archive: writers fill their last record."""
Kind = Literal["file", "folder", "link", "hard link"]
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard link",
    b"2": "link",
    b"5": "folder",
}
_REFUSED = {b"3": "a character device", b"4": "a block device", b"6": "a named pipe", b"S": "a sparse file"}
_LONG_NAME, _LONG_LINK, _EXTENDED, _GLOBAL = b"L", b"K", b"x", b"g"
_META = (_LONG_NAME, _LONG_LINK, _EXTENDED, _GLOBAL)
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One member."""

    kind: Kind
    path: bytes
    size: int
    mode: int
    link: bytes
    """Where a link leads, or the member that a hard link is another name of."""


class Sink(Protocol):
    """Who takes the members."""

    def entry(self, entry: Entry) -> None:
        """The next member; `entry.size` bytes of content follow."""
        ...

    def content(self, piece: memoryview) -> None:
        """Some of its content."""
        ...


class TarReader:
    """Pieces of a stream in, members out."""

    def __init__(self, sink: Sink) -> None:
        self.ended = False
        self._sink = sink
        self._header = bytearray()
        self._left = 0
        """Bytes of content that are still to come."""
        self._padding = 0
        self._meta_kind: bytes | None = None
        """Kind of the header whose content comes now, when it is about the member after it."""
        self._meta = bytearray()
        self._overrides: dict[str, bytes] = {}
        self._trailing = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next piece. Raises SandboxError when the stream is not a tar stream that we take."""
        view = memoryview(data)
        while view:
            if self.ended:
                self._trailing += len(view)
                if self._trailing > MAX_TRAILING_BYTES:
                    raise SandboxError("the archive goes on after its end")
                return
            if self._left:
                piece = view[: self._left]
                self._left -= len(piece)
                self._take(piece)
            elif self._padding:
                piece = view[: self._padding]
                self._padding -= len(piece)
            else:
                piece = view[: HEADER_BYTES - len(self._header)]
                self._header += piece
                if len(self._header) == HEADER_BYTES:
                    header = bytes(self._header)
                    self._header.clear()
                    self._begin(header)
            view = view[len(piece) :]

    def close(self) -> None:
        """Nothing more comes. Raises SandboxError when something is missing."""
        if not self.ended:
            raise SandboxError("the archive ends in the middle")

    def _take(self, piece: memoryview) -> None:
        if self._meta_kind is None:
            self._sink.content(piece)
            return
        self._meta += piece
        if not self._left:
            self._end_meta(bytes(self._meta))

    def _end_meta(self, data: bytes) -> None:
        kind, self._meta_kind = self._meta_kind, None
        self._meta.clear()
        if kind == _LONG_NAME:
            self._overrides["path"] = data.rstrip(b"\0")
        elif kind == _LONG_LINK:
            self._overrides["linkpath"] = data.rstrip(b"\0")
        elif kind == _EXTENDED:
            self._overrides.update(_extended(data))

    def _begin(self, header: bytes) -> None:
        if not any(header):
            if self._overrides:
                raise SandboxError("the archive ends in the middle")
            self.ended = True
            return
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise SandboxError("the archive is damaged: the checksum of a header is wrong")
        kind, size = header[156:157], _number(header[124:136])
        if kind in _META:
            if size > MAX_META_BYTES:
                raise SandboxError(f"the archive has a header of {size} bytes")
            self._meta_kind = kind
            self._expect(size)
            if not size:
                self._end_meta(b"")
            return
        overrides, self._overrides = self._overrides, {}
        path = overrides.get("path", _name(header))
        size = _decimal(overrides["size"]) if "size" in overrides else size
        if kind not in _KINDS:
            raise SandboxError(f"{path!r:.300} is {_REFUSED.get(kind, f'of the unknown kind {kind!r}')}")
        entry = Entry(
            kind=_KINDS[kind],
            path=path,
            size=size,
            mode=_number(header[100:108]),
            link=overrides.get("linkpath", _text(header[157:257])),
        )
        if size and entry.kind != "file":
            raise SandboxError(f"{path!r:.300} is a {entry.kind} with content")
        self._expect(size)
        self._sink.entry(entry)

    def _expect(self, size: int) -> None:
        self._left, self._padding = size, -size % HEADER_BYTES


def _name(header: bytes) -> bytes:
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        return _text(header[345:500]) + b"/" + name
    return name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # binary, for what octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise SandboxError(f"the archive has {field!r} where a number belongs")
    return int(match[1] or b"0", 8)


def _decimal(field: bytes) -> int:
    if not field.isdigit() or len(field) > 18:
        raise SandboxError(f"the archive has {field!r:.100} where a number belongs")
    return int(field)


def _extended(data: bytes) -> dict[str, bytes]:
    """Records of a length, a key and a value -> those that matter here."""
    found: dict[str, bytes] = {}
    while data:
        length, _, _ = data.partition(b" ")
        size = _decimal(length)
        if not len(length) < size <= len(data):
            raise SandboxError("the archive has a malformed extended header")
        record, data = data[len(length) + 1 : size], data[size:]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise SandboxError("the archive has a malformed extended header")
        if key.startswith(b"GNU.sparse"):
            raise SandboxError("the archive has a sparse file")
        if key in (b"path", b"linkpath", b"size"):
            found[key.decode()] = value[:-1]
    return found
