from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from vime_sandboxes.transfer_pipe import PipeEnd


@pytest.fixture
def reading() -> Iterator[PipeEnd]:
    end = PipeEnd(to_read=True)
    yield end
    end.close()


@pytest.fixture
def writing() -> Iterator[PipeEnd]:
    end = PipeEnd(to_read=False)
    yield end
    end.close()


def test_what_the_program_writes_comes_until_it_closes(reading: PipeEnd) -> None:
    content = os.urandom(5 << 20)

    def program() -> None:
        with open(reading.other, "wb", closefd=False) as file:
            file.write(content)
        reading.close_other()

    thread = threading.Thread(target=program)
    thread.start()
    assert b"".join(bytes(piece) for piece in reading.pieces()) == content
    thread.join()


def test_what_is_there_when_the_program_has_ended_is_all(reading: PipeEnd) -> None:
    os.write(reading.other, b"last words")  # and the end stays open: somebody else holds it
    timer = threading.Timer(0.05, reading.program_ended)
    timer.start()
    assert [bytes(piece) for piece in reading.pieces()] == [b"last words"]
    timer.join()


def test_a_flood_is_not_read_on_when_nobody_wants_it(reading: PipeEnd) -> None:
    seen = 0
    os.write(reading.other, bytes(1 << 16))
    for piece in reading.pieces():
        seen += len(piece)
        os.write(reading.other, piece)
        if seen >= 1 << 20:
            reading.give_up()
    assert seen == 1 << 20


def test_the_program_reads_what_is_written_then_end_of_file(writing: PipeEnd) -> None:
    content, seen = os.urandom(5 << 20), bytearray()

    def program() -> None:
        with open(writing.other, "rb", closefd=False) as file:
            seen.extend(file.read())

    thread = threading.Thread(target=program)
    thread.start()
    writing.write([content[: 3 << 20], b"", content[3 << 20 :]])
    thread.join(timeout=30)
    assert seen == content


@pytest.mark.parametrize("how", ["program_ended", "give_up", "close_other"])
def test_a_full_pipe_that_nobody_reads_holds_nobody(writing: PipeEnd, how: str) -> None:
    timer = threading.Timer(0.05, getattr(writing, how))
    timer.start()
    with pytest.raises(BrokenPipeError):
        writing.write([bytes(5 << 20)])
    timer.join()


def test_when_given_up_nothing_more_is_read_from_the_source(writing: PipeEnd) -> None:
    def blocks() -> Iterator[bytes]:
        yield b"first"
        writing.give_up()
        yield b"second"
        raise AssertionError("it was read on")

    with pytest.raises(BrokenPipeError):
        writing.write(blocks())
    assert os.read(writing.other, 100) == b"first"


def test_it_may_be_told_when_all_is_over() -> None:
    end = PipeEnd(to_read=True)
    end.close()
    end.program_ended()
    end.give_up()
