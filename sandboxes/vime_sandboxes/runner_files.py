"""Files, as the runner inside a sandbox reads and writes them. Nothing here ever blocks."""

from __future__ import annotations

import _stat as stat
import errno
import posix as os

from vime_sandboxes.runner_frames import CHUNK


def read_piece(path: bytes, offset: int, length: int) -> bytes:
    """`length` bytes of a regular file, or fewer at its end. A pipe or a device is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _require_regular(fd)
        length, data = min(length, CHUNK), b""
        while len(data) < length:  # files of /proc come in small pieces
            piece = os.pread(fd, length - len(data), offset + len(data))
            if not piece:
                break
            data = data + piece if data else piece
        return data
    finally:
        os.close(fd)


def write_piece(path: bytes, mode: int, append: bool, data: bytes) -> None:
    """Start a file, making its folders, or append to it."""
    flags = os.O_WRONLY | os.O_NONBLOCK | (os.O_APPEND if append else os.O_CREAT | os.O_TRUNC)
    try:
        fd = os.open(path, flags, mode)
    except FileNotFoundError:
        if append:
            raise
        _make_parents(path)
        fd = os.open(path, flags, mode)
    try:
        _require_regular(fd)
        if not append:
            os.fchmod(fd, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


def _make_parents(path: bytes) -> None:
    for at in range(1, len(path)):
        if path[at : at + 1] == b"/":
            try:
                os.mkdir(path[:at])
            except FileExistsError:
                continue


def _require_regular(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
