from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vime_agents.errors import SandboxDead
from vime_sandboxes import runner_bundle
from vime_sandboxes import runner_frames as frames
from vime_sandboxes.connection import Call
from vime_sandboxes.io_thread import on_io_thread
from vime_sandboxes.runner_link import RunnerLink
from vime_sandboxes.runner_process import RunnerProcess


class Pretender:
    """A runner of the test's: what it says is what it is told to say."""

    def __init__(self) -> None:
        self.said = asyncio.StreamReader()
        self.heard: list[tuple[int, int, list[bytes]]] = []

    def say(self, request: int, kind: int, *fields: bytes) -> None:
        payload = frames.pack(fields)
        self.said.feed_data(frames.HEADER.pack(len(payload), request, kind) + payload)

    def write(self, data: bytes) -> None:
        _, request, kind = frames.HEADER.unpack_from(data)
        self.heard.append((request, kind, frames.unpack(data[frames.HEADER.size :])))
        if kind == frames.SPAWN:
            self.say(request, frames.STARTED, b"7")

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


async def spawned() -> tuple[Pretender, RunnerLink, RunnerProcess]:
    pretender = Pretender()
    link = RunnerLink(pretender.said, pretender, lambda reason: reason)
    process = await link.spawn(["x"], env={}, cwd="/", timeout_s=None)
    return pretender, link, process


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (frames.STDOUT, (b"x" * frames.CHUNK,)),  # again and again, more than there is credit for
        (frames.TAKEN, (b"1",)),  # nothing was sent
        (frames.DATA, (b"x",)),
        (frames.EXITED, (b"not a number",)),
    ],
)
async def test_a_runner_that_breaks_its_promises_is_dead(kind: int, fields: tuple[bytes, ...]) -> None:
    async def run() -> None:
        pretender, _, process = await spawned()
        (request, _, _), *_ = pretender.heard
        for _ in range(2 * frames.WINDOW // frames.CHUNK):
            pretender.say(request, kind, *fields)
        await process.wait()

    with pytest.raises(SandboxDead, match="broke the protocol"):
        await on_io_thread(run())


async def test_credit_is_given_for_what_was_read_only() -> None:
    async def run() -> list[int]:
        pretender, _, process = await spawned()
        (request, _, _), *_ = pretender.heard
        for _ in range(4):
            pretender.say(request, frames.STDOUT, b"x" * (frames.WINDOW // 4))
        pieces = process.output()
        assert len((await anext(pieces))[1]) == frames.WINDOW // 4
        given = [int(f[1]) for _, kind, f in pretender.heard if kind == frames.CREDIT]
        await pieces.aclose()
        return given

    assert sum(await on_io_thread(run())) == frames.WINDOW // 4


async def test_short_pieces_take_of_the_window_what_it_costs_to_keep_them() -> None:
    async def run() -> None:
        pretender, _, process = await spawned()
        (request, _, _), *_ = pretender.heard
        for _ in range(2 * frames.WINDOW // frames.MIN_COST):
            pretender.say(request, frames.STDOUT, b"x")
        await process.wait()

    with pytest.raises(SandboxDead, match="more output than was asked for"):
        await on_io_thread(run())


async def test_a_program_that_writes_single_bytes_is_held_back_and_all_of_it_comes(
    plain_runner: subprocess.Popen[bytes],
) -> None:
    script = "for n in $(seq 20000); do echo x; done"

    async def run() -> int:
        link = await linked(plain_runner)
        process = await link.spawn(["sh", "-c", script], env={}, cwd="/", timeout_s=60)
        await asyncio.sleep(0.3)  # nobody reads: the window fills up
        pieces = process.output()
        total = 0
        async for _, piece in pieces:
            total += len(piece)
        return total

    assert await on_io_thread(run()) == 40000


async def test_no_more_input_is_sent_than_was_taken() -> None:
    async def run() -> tuple[int, int]:
        pretender, _, process = await spawned()
        (request, _, _), *_ = pretender.heard

        def sent() -> int:
            return sum(len(f[1]) for _, kind, f in pretender.heard if kind == frames.STDIN)

        writer = asyncio.ensure_future(process._write(b"x" * (3 * frames.WINDOW)))
        while sent() < frames.WINDOW:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        first = sent()
        pretender.say(request, frames.TAKEN, b"1000")
        while sent() == first:
            await asyncio.sleep(0)
        writer.cancel()
        return first, sent()

    assert await on_io_thread(run()) == (frames.WINDOW, frames.WINDOW + 1000)


async def test_an_answer_to_nobody_is_ignored() -> None:
    async def run() -> int:
        pretender, link, _ = await spawned()
        pretender.say(99, frames.STDOUT, b"x")
        call = Call(asyncio.get_running_loop().create_future(), 0)
        request = link.connection.subscribe(call)
        pretender.say(request, frames.DONE)
        return (await call.answer)[0]

    assert await on_io_thread(run()) == frames.DONE


@pytest.fixture
async def plain_runner() -> AsyncIterator[subprocess.Popen[bytes]]:
    """From its source, as a container's image runs it: not process 1, and over two pipes."""
    arguments = ["600", str(1 << 30), str(1 << 30), str(1 << 30)]
    program = "import sys; exec(compile(sys.stdin.buffer.raw.read(int(sys.argv.pop(1))), 'runner', 'exec'))"
    source = runner_bundle.source()
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", program, str(len(source)), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None
    process.stdin.write(source)
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


async def linked(runner: subprocess.Popen[bytes]) -> RunnerLink:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), runner.stdout)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, runner.stdin)
    link = RunnerLink(reader, asyncio.StreamWriter(transport, protocol, None, loop), lambda reason: reason)
    await link.ready()
    return link


async def test_the_source_is_a_runner_too_and_ends_with_all_it_started(plain_runner) -> None:
    async def run() -> str:
        link = await linked(plain_runner)
        result = await link.exec(
            ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"],
            stdin=b"",
            env={},
            cwd="/",
            timeout_s=30,
            max_output=1000,
        )
        link.close()
        return result.text.strip()

    child = await on_io_thread(run())
    assert child.isdigit()
    assert plain_runner.wait(timeout=30) == 0
    assert not Path("/proc", child).exists()
