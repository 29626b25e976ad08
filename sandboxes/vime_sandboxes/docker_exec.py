"""Commands as execs of the daemon's: for images without Python, and for other users than the sandbox's own.

Slower than a runner inside (about 100 ms each). What a program's exit status cannot tell apart stays so: 137
is taken for signal 9 even if the program itself ended with 137.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from vime_agents.errors import (
    CommandNotFound,
    SandboxBackendError,
    SandboxDead,
    SandboxError,
    SandboxFileNotFound,
    SandboxPermissionError,
    SandboxUnsupported,
)
from vime_agents.sandbox import ExecResult
from vime_sandboxes.docker_container import WORKDIR
from vime_sandboxes.docker_engine import ApiError, Engine
from vime_sandboxes.docker_stream import STDERR, STDOUT, Stream
from vime_sandboxes.io_thread import io_loop, on_io_thread
from vime_sandboxes.runner_start import Output
from vime_sandboxes.runner_tree import EXEC_VARIABLE

UNKNOWN_USER = "unable to find user"
"""What the daemon says of a name that the image does not have."""
_POLL_S = 0.01
_KILL, _LAST_SIGNAL = 9, 64
_MISSING, _FORBIDDEN, _NO_FOLDER = 127, 126, 125
# Says on standard error who it is or what is missing, in a line that begins with a word that only the owner
# knows, and becomes the command. Without any new process: a full sandbox cannot have one.
_WRAPPER = """\
word=$1 folder=$2; shift 2
cd "$folder" 2>/dev/null || { echo "$word 125 0" >&2; exit 125; }
code=127
case $1 in
*/*) [ ! -e "$1" ] || { [ -x "$1" ] && [ ! -d "$1" ] && code=0 || code=126; } ;;
*)
    old=$IFS IFS=:
    for place in $PATH; do
        [ -f "$place/$1" ] || continue
        [ -x "$place/$1" ] && code=0 && break
        code=126
    done
    IFS=$old
    ;;
esac
echo "$word $code $$" >&2
[ "$code" = 0 ] || exit "$code"
unset word folder code old place
exec "$@"
"""


class Supervisor(Protocol):
    """What can reach the processes of a container without starting another."""

    async def end_tree(self, mark: str, pid: int) -> None:
        """Kill all that has `mark` in its environment, is of the session `pid` (0: unknown), or descends."""
        ...

    async def signal(self, number: int, pid: int) -> None:
        """Signal one process."""
        ...

    async def ping(self) -> None:
        """Raise SandboxDead when the container is gone."""
        ...


class ExecProcess:
    """A running exec; see `vime_agents.sandbox.SandboxProcess`. Works from any event loop."""

    def __init__(
        self, exec_id: str, stream: Stream, mark: str, engine: Engine, supervisor: Supervisor
    ) -> None:
        self.pid = 0
        self._exec_id, self._stream, self._mark = exec_id, stream, mark
        self._engine, self._supervisor = engine, supervisor
        self._started = time.monotonic()
        self._totals = [0, 0]
        self._first: list[tuple[int, bytes]] = []
        self._ended = False
        self._result: ExecResult | None = None
        self._timed_out = False
        self._timer: asyncio.Task[None] | None = None
        self._deaf = asyncio.Event()
        """Set when it will read no more input."""
        self._reading = asyncio.Lock()
        self._nobody_reads = asyncio.Event()
        self._nobody_reads.set()

    async def write(self, data: bytes) -> None:
        """Write to its standard input; see the protocol."""
        await on_io_thread(self.feed(data))

    async def close_stdin(self) -> None:
        """Let it read end-of-file."""
        await on_io_thread(self.end_input())

    async def output(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        """Pieces as they come; see the protocol."""
        io_loop().call_soon_threadsafe(self._nobody_reads.clear)
        try:
            while piece := await on_io_thread(self.next_piece()):
                yield ("stdout" if piece[0] == STDOUT else "stderr"), piece[1]
        finally:
            io_loop().call_soon_threadsafe(self._nobody_reads.set)

    async def wait(self) -> ExecResult:
        """Wait for its end; see the protocol."""
        return await on_io_thread(self.finish())

    async def kill(self, signal: int = 9) -> None:
        """Signal it; see the protocol."""
        await on_io_thread(self._signal(signal))

    # ------------------------------------------------------------------------- on the io thread only

    async def begin(self, word: str, command: str, cwd: str, timeout_s: float | None) -> None:
        """Read what the wrapper says of itself. Raises what `exec` raises for what does not exist."""
        said, out = b"", b""
        while b"\n" not in said:
            kind, data = await self._stream.read()
            if not data:
                await self._supervisor.ping()
                text = (said + out)[:400].decode(errors="replace").strip() or "the shell said nothing"
                if UNKNOWN_USER in text:
                    raise SandboxUnsupported(f"the sandbox's image does not know that user: {text}")
                raise SandboxBackendError(f"{command!r} was not started: {text}")
            # The two streams are not in step: the command's own output may overtake the wrapper's line.
            if kind == STDOUT:
                out += data
            else:
                said += data
        line, _, rest = said.partition(b"\n")
        self._first = [piece for piece in ((STDOUT, out), (STDERR, rest)) if piece[1]]
        seen, _, numbers = line.decode(errors="replace").partition(" ")
        if seen != word:
            raise SandboxBackendError(f"{command!r} was not started: {line[:400].decode(errors='replace')}")
        code, self.pid = (int(n) for n in numbers.split())
        if code == _NO_FOLDER:
            raise SandboxFileNotFound(2, f"cwd {cwd}: no such folder (in the sandbox)")
        if code == _MISSING:
            raise CommandNotFound(f"no program {command!r} in the sandbox")
        if code == _FORBIDDEN:
            raise SandboxPermissionError(13, f"may not run {command!r} in the sandbox")
        if timeout_s is not None:
            self._timer = asyncio.create_task(self._end_after(timeout_s))

    async def next_piece(self) -> tuple[int, bytes] | None:
        """A piece of its output; None at the end."""
        async with self._reading:
            if self._ended:
                return None
            kind, data = self._first.pop(0) if self._first else await self._stream.read()
            if not data:
                # What ended because its container did has no end of its own.
                await self._supervisor.ping()
                self._ended = True
                self._deaf.set()
                self._forget_stream()
                self._nobody_reads.set()
                return None
            self._totals[kind - 1] += len(data)
            return kind, data

    async def finish(self) -> ExecResult:
        """Its end, with empty output."""
        while not self._ended:
            await self._nobody_reads.wait()
            await self.next_piece()
        if self._result is None:
            code = await self._exit_code()
            if self._timer is not None and not self._timed_out:
                self._timer.cancel()
            self._result = self._result or self._make_result(code)
        return self._result

    async def end(self) -> None:
        """Kill it and everything that it started."""
        await self._supervisor.end_tree(self._mark, self.pid)
        self._deaf.set()

    async def feed(self, data: bytes) -> None:
        """Write to its standard input."""
        if self._deaf.is_set():
            raise BrokenPipeError(32, "the program has ended")
        sent = asyncio.ensure_future(self._send(data))
        deaf = asyncio.ensure_future(self._deaf.wait())
        try:
            await asyncio.wait({sent, deaf}, return_when=asyncio.FIRST_COMPLETED)
            if not sent.done():
                raise BrokenPipeError(32, "the program was killed")
            await sent
        except (ConnectionError, RuntimeError) as error:
            await self._supervisor.ping()
            raise BrokenPipeError(32, "the program has ended, or closed its input") from error
        finally:
            sent.cancel()
            deaf.cancel()

    async def _send(self, data: bytes) -> None:
        self._stream.writer.write(data)
        await self._stream.writer.drain()

    async def end_input(self) -> None:
        """Let it read end-of-file."""
        self._stream.end_input()

    def close(self) -> None:
        """Forget it."""
        if self._timer is not None:
            self._timer.cancel()
        self._forget_stream()

    def _forget_stream(self) -> None:
        self._stream.close()
        for streams in self._engine.streams.values():
            streams.discard(self._stream)

    def _make_result(self, code: int) -> ExecResult:
        signal = code - 128 if 128 < code <= 128 + _LAST_SIGNAL else None
        return ExecResult(
            exit_code=None if signal or self._timed_out else code,
            stdout=b"",
            stderr=b"",
            stdout_bytes=self._totals[0],
            stderr_bytes=self._totals[1],
            duration_s=time.monotonic() - self._started,
            signal=signal,
            timed_out=self._timed_out,
        )

    async def _signal(self, number: int) -> None:
        if self._ended:
            return
        if number == _KILL:
            await self.end()
        else:
            await self._supervisor.signal(number, self.pid)

    async def _end_after(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)
        self._timed_out = True
        with contextlib.suppress(SandboxError):  # of a dead sandbox whoever waits is told elsewhere
            await self.end()

    async def _exit_code(self) -> int:
        while True:
            try:
                found = await self._engine.call(
                    "the end of a command", lambda client: client.exec_inspect(self._exec_id)
                )
            except ApiError as error:
                if error.status == 404:
                    raise SandboxDead("the container is gone") from error
                raise
            if not found["Running"] and found["ExitCode"] is not None:
                return int(found["ExitCode"])
            await asyncio.sleep(_POLL_S)


async def start(
    engine: Engine,
    container: str,
    supervisor: Supervisor,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    user: str,
    timeout_s: float | None,
) -> ExecProcess:
    """Start a command in a container.

    Raises:
        CommandNotFound, SandboxFileNotFound, SandboxPermissionError: as `Sandbox.exec`.
        SandboxDead: the container is gone.
    """
    word, mark = secrets.token_hex(12), secrets.token_hex(12)
    arguments = ["sh", "-c", _WRAPPER, "sh", word, posixpath.join(WORKDIR, cwd), *command]
    variables = {**env, EXEC_VARIABLE: mark}
    what = f"starting {command[0]!r}"
    try:
        made = await engine.call(
            what,
            lambda client: client.exec_create(
                container, arguments, stdin=True, environment=variables, user=user
            ),
        )
        stream = await engine.stream(what, f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})
        engine.streams.setdefault(container, set()).add(stream)
    except ApiError as error:
        if error.status in (404, 409):
            raise SandboxDead(f"the container is gone: {error}") from error
        raise
    process = ExecProcess(made["Id"], stream, mark, engine, supervisor)
    try:
        await process.begin(word, command[0], cwd, timeout_s)
    except BaseException:
        await give_up(process)
        raise
    return process


async def run(process: ExecProcess, stdin: bytes, max_output: int) -> ExecResult:
    """Feed a started command and wait for its end; a cancelled caller kills it."""
    outputs = (Output(max_output), Output(max_output))
    feeding = asyncio.create_task(_feed(process, stdin))
    try:
        while piece := await process.next_piece():
            outputs[piece[0] - 1].add(piece[1])
        result = await process.finish()
    except BaseException:
        await give_up(process)
        raise
    finally:
        feeding.cancel()
    return replace(result, stdout=outputs[0].content(), stderr=outputs[1].content())


async def give_up(process: ExecProcess) -> None:
    """Kill a command whose owner does not wait any longer."""

    async def end() -> None:
        with contextlib.suppress(SandboxError):  # a dead sandbox has no processes
            await process.end()
        process.close()

    await asyncio.shield(asyncio.ensure_future(end()))


async def _feed(process: ExecProcess, stdin: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it need not read what it is given
        if stdin:
            await process.feed(stdin)
    await process.end_input()
