"""A file or a folder of this machine as a tar stream, block by block."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path

from vime_agents.errors import SandboxError

BLOCK_BYTES = 1 << 20
_LARGE_BYTES = BLOCK_BYTES // 4
_END = bytes(2 * tarfile.BLOCKSIZE)


def archive(source: Path, name: str | None = None) -> Generator[bytes, None, None]:
    """The content of the folder `source`; or the one file `source`, under `name`.

    Links are kept as links, modes without the set-user and set-group bits; owners are not kept.

    Raises:
        SandboxError: something is neither file, folder nor link, or became shorter while it was read.
        OSError: it cannot be read.
    """
    source = source.resolve(strict=True)
    pieces = _folder(source, "") if source.is_dir() else _entry(source, name or source.name)
    pending = bytearray()
    for piece in pieces:
        if len(pending) + len(piece) >= _LARGE_BYTES:
            if pending:
                yield bytes(pending)
                pending.clear()
            if len(piece) >= _LARGE_BYTES:
                yield piece  # as it is: copies would be most of the work
                continue
        pending += piece
    yield bytes(pending) + _END


def _folder(folder: Path, prefix: str) -> Iterator[bytes]:
    for child in sorted(folder.iterdir()):
        yield from _entry(child, prefix + child.name)


def _entry(path: Path, name: str) -> Iterator[bytes]:
    seen = path.lstat()
    header = tarfile.TarInfo(name)
    header.mode, header.mtime = stat.S_IMODE(seen.st_mode) & 0o777, int(seen.st_mtime)
    if stat.S_ISDIR(seen.st_mode):
        header.type = tarfile.DIRTYPE
        yield _encoded(header)
        yield from _folder(path, name + "/")
    elif stat.S_ISLNK(seen.st_mode):
        header.type, header.linkname = tarfile.SYMTYPE, os.readlink(path)
        yield _encoded(header)
    elif stat.S_ISREG(seen.st_mode):
        yield from _file(path, header)
    else:
        raise SandboxError(f"cannot upload {str(path)!r}: neither a file, a folder nor a link")


def _file(path: Path, header: tarfile.TarInfo) -> Iterator[bytes]:
    # Not blocking, and not through a link: what was a file a moment ago may be something else by now.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        left = header.size = os.fstat(fd).st_size
        yield _encoded(header)
        while left:
            piece = file.read(min(left, BLOCK_BYTES))
            if not piece:
                raise SandboxError(f"cannot upload {str(path)!r}: it became shorter while it was read")
            left -= len(piece)
            yield piece
        yield bytes(-header.size % tarfile.BLOCKSIZE)


def _encoded(header: tarfile.TarInfo) -> bytes:
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
