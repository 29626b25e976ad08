"""Taking a container's two streams apart."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest

from vime_sandboxes.docker_stream import STDERR, STDOUT, Stream


class Writer:
    closed = False

    def close(self) -> None:
        self.closed = True


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack("!BxxxI", kind, len(data)) + data


def stream(*pieces: bytes, end: bool = True) -> Stream:
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    if end:
        reader.feed_eof()
    return Stream(reader, cast(Any, Writer()))


async def test_pieces_come_with_their_stream() -> None:
    both = stream(frame(STDOUT, b"out") + frame(STDERR, b"err"), frame(STDOUT, b""), frame(STDOUT, b"\xff\0"))
    seen = [await both.read() for _ in range(4)]
    assert seen == [(STDOUT, b"out"), (STDERR, b"err"), (STDOUT, b"\xff\0"), (STDOUT, b"")]


async def test_exactly_so_many_bytes_across_pieces_and_errors_aside() -> None:
    both = stream(frame(STDOUT, b"abc"), frame(STDERR, b"oops"), frame(STDOUT, b"defgh"))
    assert await both.readexactly(5) == b"abcde"
    assert bytes(both.errors) == b"oops"
    assert await both.readexactly(0) == b""
    assert await both.readexactly(3) == b"fgh"
    with pytest.raises(EOFError):
        await both.readexactly(1)


async def test_of_errors_only_a_start_is_kept() -> None:
    both = stream(*(frame(STDERR, b"e" * 3000) for _ in range(3)), frame(STDOUT, b"x"))
    assert await both.readexactly(1) == b"x"
    assert bytes(both.errors) == b"e" * 4096


@pytest.mark.parametrize("cut", [4, 9])
async def test_an_end_in_the_middle_is_an_error(cut: int) -> None:
    both = stream(frame(STDOUT, b"abcdef")[:cut])
    with pytest.raises(EOFError):
        await both.readexactly(6)
