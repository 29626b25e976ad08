from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_sandboxes import runner_files, runner_start
from vime_sandboxes import runner_frames as frames


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_fields_survive_a_frame(fields: list[bytes]) -> None:
    assert frames.unpack(frames.pack(fields)) == fields


def test_layout_is_length_then_bytes() -> None:
    assert frames.pack([b"ab", b""]) == b"\0\0\0\2ab\0\0\0\0"


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=4), st.integers(min_value=1))
def test_a_cut_frame_is_refused_or_shorter(fields: list[bytes], cut: int) -> None:
    whole = frames.pack(fields)
    part = whole[: -(cut % len(whole) or 1)]
    try:
        seen = frames.unpack(part)
    except ValueError:
        return
    assert seen == fields[: len(seen)]
    assert len(seen) < len(fields)


def test_a_field_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="truncated field"):
        frames.unpack(struct.pack("!I", 2**32 - 1) + b"x")


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(min_value=0, max_value=40))
def test_output_keeps_head_and_tail_and_counts_everything(pieces: list[bytes], limit: int) -> None:
    output = runner_start.Output(limit)
    for piece in pieces:
        output.add(piece)
    whole = b"".join(pieces)
    assert output.total == len(whole)
    if len(whole) <= limit:
        assert output.content() == whole
    else:
        head, tail = limit - limit // 2, limit // 2
        assert output.content() == whole[:head] + whole[len(whole) - tail :]


def test_output_needs_no_more_memory_than_its_limit() -> None:
    output = runner_start.Output(1000)
    for _ in range(100):
        output.add(b"x" * 100_000)
    assert output.total == 10_000_000
    assert len(output._head) + len(output._tail) <= 1000 + frames.CHUNK + 100_000


def test_files_move_in_pieces(tmp_path) -> None:
    path = bytes(tmp_path / "a" / "f")
    runner_files.write_piece(path, 0o640, False, b"0123")
    runner_files.write_piece(path, 0o640, True, b"456")
    assert runner_files.read_piece(path, 2, 3) == b"234"
    assert runner_files.read_piece(path, 7, 3) == b""
    assert (tmp_path / "a" / "f").stat().st_mode & 0o777 == 0o640
    with pytest.raises(IsADirectoryError):
        runner_files.write_piece(bytes(tmp_path), 0o640, False, b"")
    with pytest.raises(OSError, match="not a regular file"):
        runner_files.read_piece(bytes(tmp_path), 0, 1)
