"""The owner's side of a program that the runner has spawned; see `vime_agents.sandbox.SandboxProcess`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Literal, TypeVar

from vime_agents.errors import ContractError, SandboxDead, SandboxError
from vime_agents.sandbox import ExecResult, SandboxProcess
from vime_sandboxes import runner_frames as frames
from vime_sandboxes.connection import Connection
from vime_sandboxes.io_thread import made, on_io_thread

P = TypeVar("P", bound=SandboxProcess)
Piece = tuple[Literal["stdout", "stderr"], bytes]
_NAMES: dict[int, Literal["stdout", "stderr"]] = {frames.STDOUT: "stdout", frames.STDERR: "stderr"}
_BATCH_BYTES = frames.WINDOW // 4
_SURPLUS_BYTES = 2 * frames.CHUNK
"""Most that a program's end sends beyond the window: what is in its pipes then."""


class RunnerProcess:
    """One such program. Works from any event loop."""

    def __init__(self, connection: Connection, answer_timeout_s: float) -> None:
        self.pid = 0
        self.started: asyncio.Future[tuple[int, list[bytes]]] = asyncio.get_running_loop().create_future()
        self.request = connection.subscribe(self)
        self._connection = connection
        self._answer_timeout_s = answer_timeout_s
        self._exit: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self._lost: SandboxDead | None = None
        self._changed = asyncio.Event()
        """Set whenever there is something new for whoever waits on the io thread."""
        self._pieces: deque[Piece] = deque()
        self._window = frames.WINDOW + _SURPLUS_BYTES
        self._owed = 0
        """What was taken, and no credit was given for yet."""
        self._reading = self._streams_ended = self._dropping = False
        self._waiters = 0
        self._room = frames.WINDOW
        self._stdin_open = True
        self._writing = asyncio.Lock()

    # ---------------------------------------------------------------------- what everybody may call

    async def write(self, data: bytes) -> None:
        """Write to its standard input; waits while the program does not read. Raises BrokenPipeError."""
        await on_io_thread(self._write(data))

    async def close_stdin(self) -> None:
        """Let it read end-of-file, once it has read what was written."""
        await on_io_thread(self._close_stdin())

    def output(self) -> AsyncGenerator[Piece, None]:
        """Pieces as they come, until both streams end. For one reader; a slow one holds the program back."""
        return self._output()

    async def wait(self) -> ExecResult:
        """Wait for its end. Output that nobody reads through `output` is dropped from here on."""
        await asyncio.sleep(0)  # a reader that was started just before is a reader
        return await on_io_thread(self._wait())

    async def kill(self, signal: int = 9) -> None:
        """Signal it; SIGKILL is for it and everything that it started."""
        await on_io_thread(self._kill(signal))

    # ------------------------------------------------------------------------- on the io thread only

    def take(self, kind: int, fields: list[bytes]) -> None:
        """One frame of the runner's."""
        if not self.started.done():
            if kind == frames.STARTED:
                self.pid = int(fields[0])
            self.started.set_result((kind, fields))
        elif kind in _NAMES:
            self._window -= max(len(fields[0]), frames.MIN_COST)
            if self._window < 0:
                raise ValueError("more output than was asked for")
            if not self._dropping:
                self._pieces.append((_NAMES[kind], fields[0]))
        elif kind == frames.TAKEN:
            self._room += int(fields[0])
            if self._room > frames.WINDOW:
                raise ValueError("more input taken than was sent")
        elif kind == frames.REFUSED:
            self._stdin_open = False
        elif kind == frames.ENDED:
            self._streams_ended = True
        elif kind == frames.EXITED:
            self._stdin_open = False
            self._exit.set_result(exec_result(fields))
        else:
            raise ValueError(f"an answer of kind {kind} to SPAWN")
        if self._streams_ended and self._exit.done():
            self._connection.unsubscribe(self.request)
        self._changed.set()

    def lose(self, error: SandboxDead) -> None:
        """The sandbox is gone."""
        self._lost = error
        for future in (self.started, self._exit):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting
        self._changed.set()

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            left = memoryview(data)
            while True:
                if self._lost is not None:
                    raise type(self._lost)(str(self._lost))
                if not self._stdin_open:
                    raise BrokenPipeError(f"process {self.pid} has ended, or closed its input")
                if not left:
                    return
                size = min(len(left), self._room, frames.CHUNK)
                if size > 0:
                    self._room -= size
                    self._send(frames.STDIN, left[:size])
                    left = left[size:]
                    await self._connection.drain()
                else:
                    await self._change()

    async def _close_stdin(self) -> None:
        async with self._writing:
            if self._lost is not None:
                raise type(self._lost)(str(self._lost))
            if self._stdin_open:
                self._stdin_open = False
                self._send(frames.STDIN, b"")

    async def _output(self) -> AsyncGenerator[Piece, None]:
        if self._reading:
            raise ContractError("a process has one reader of its output at a time")
        self._reading = True
        try:
            while batch := await on_io_thread(self._next()):
                for piece in batch:
                    yield piece
        finally:
            self._reading = False
            if not self._streams_ended:
                await on_io_thread(self._drop_unread())

    async def _next(self) -> list[Piece]:
        while not self._pieces:
            if self._streams_ended:
                return []
            if self._lost is not None:
                raise type(self._lost)(str(self._lost))
            await self._change()
        batch, size = [], 0
        while self._pieces and size < _BATCH_BYTES:
            batch.append(self._pieces.popleft())
            size += max(len(batch[-1][1]), frames.MIN_COST)
        self._grant(size)
        return batch

    async def _wait(self) -> ExecResult:
        self._waiters += 1
        try:
            await self._drop_unread()
            return await asyncio.shield(self._exit)
        finally:
            self._waiters -= 1

    async def _drop_unread(self) -> None:
        if self._waiters and not self._reading and not self._dropping:
            self._dropping = True
            self._pieces.clear()
            self._window = 1 << 62
            if self._lost is None:
                self._send(frames.CREDIT, b"-1")

    async def _kill(self, number: int) -> None:
        if not self._exit.done() or self._exit.exception() is not None:
            fields = [str(self.request).encode(), str(int(number)).encode()]
            await self._connection.call(frames.SIGNAL, fields, timeout_s=self._answer_timeout_s)

    def _grant(self, size: int) -> None:
        self._owed += size
        if self._owed >= _BATCH_BYTES and self._lost is None and not self._streams_ended:
            self._window += self._owed
            self._send(frames.CREDIT, str(self._owed).encode())
            self._owed = 0

    def _send(self, kind: int, content: bytes | memoryview) -> None:
        self._connection.send(0, kind, [str(self.request).encode(), content])

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def exec_result(fields: list[bytes], stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    """What an EXITED frame says."""
    code, number, timed_out, out_bytes, err_bytes = (int(f) for f in fields[:5])
    return ExecResult(
        exit_code=None if number else code,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=out_bytes,
        stderr_bytes=err_bytes,
        duration_s=float(fields[5]),
        signal=number or None,
        timed_out=bool(timed_out),
    )


async def started(starting: Coroutine[Any, Any, P]) -> P:
    """The program that `starting` starts on the io thread; killed when the caller is cancelled meanwhile."""
    return await made(starting, _end_quietly)


async def _end_quietly(program: SandboxProcess) -> None:
    try:
        await program.kill()
    except SandboxError:
        return  # the sandbox is gone, and the program with it
