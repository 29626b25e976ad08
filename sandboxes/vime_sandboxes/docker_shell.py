"""A sandbox whose image has no Python: a shell as process 1, and an exec of the daemon's for each command.

The shell (`docker_supervisor.sh`) only watches and kills. It is of the same user as the commands: what they
do to it can let them outlive their time limit, never the container, and never change a result.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from vime_agents.errors import (
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxPermissionError,
    SandboxTimeout,
)
from vime_agents.sandbox import ExecResult
from vime_sandboxes import docker_exec
from vime_sandboxes.docker_container import WORKDIR
from vime_sandboxes.docker_engine import Engine
from vime_sandboxes.docker_stream import STDOUT, Stream

ANSWER_TIMEOUT_S = 15.0
"""How long the shell, or a file operation without progress, may take."""
_READ = """\
[ ! -e "$1" ] || [ -f "$1" ] || { echo "not a regular file" >&2; exit 1; }
exec cat "$1"
"""
_WRITE = """\
case $1 in */*) mkdir -p "${1%/*}" || exit 1 ;; esac
[ ! -e "$1" ] || [ -f "$1" ] || { echo "not a regular file" >&2; exit 1; }
cat >"$1" && chmod "$2" "$1"
"""


class ShellLink:
    """Speaks to one such container. On the io thread only."""

    def __init__(self, engine: Engine, container: str, stream: Stream, user: str, ttl_s: float) -> None:
        self._engine, self._container, self._stream, self._user = engine, container, stream, user
        self._lost: str | None = None
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._ids = itertools.count(1)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer = asyncio.get_running_loop().call_later(ttl_s, self._expire)
        self._listening = asyncio.create_task(self._listen())

    async def ready(self) -> None:
        """Wait until it can be used. Raises SandboxDead."""
        await self._ready

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float,
        max_output: int,
    ) -> ExecResult:
        """Run a program to its end; see the protocol."""
        process = await self.spawn(command, env=env, cwd=cwd, timeout_s=timeout_s)
        return await docker_exec.run(process, stdin, max_output)

    async def spawn(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, timeout_s: float | None
    ) -> docker_exec.ExecProcess:
        """Start a program; see the protocol."""
        self._require()
        return await docker_exec.start(
            self._engine,
            self._container,
            self,
            command,
            env=env,
            cwd=cwd,
            user=self._user,
            timeout_s=timeout_s,
        )

    async def read(self, path: str, max_bytes: int) -> bytes:
        """A file's content; see the protocol."""
        process = await self._shell(_READ, path)
        content, errors = bytearray(), bytearray()
        try:
            while piece := await process.next_piece():
                (content if piece[0] == STDOUT else errors).extend(piece[1])
                if len(content) > max_bytes:
                    raise SandboxOutputTooLarge(f"{path}: more than max_bytes={max_bytes}")
            result = await process.finish()
        except BaseException:
            await docker_exec.give_up(process)
            raise
        if not result.ok:
            raise _file_error(path, errors)
        return bytes(content)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """Write a file, making its folders; see the protocol."""
        process = await self._shell(_WRITE, path, f"{mode:o}")
        result = await docker_exec.run(process, data, 4096)
        if not result.ok:
            raise _file_error(path, result.stderr)

    async def ping(self) -> None:
        """Raise SandboxDead unless it answers."""
        await self._ask("ping")

    async def end_tree(self, mark: str, pid: int) -> None:
        """Kill a command and all that it started."""
        await self._ask("end", mark, str(pid or "-"))

    async def signal(self, number: int, pid: int) -> None:
        """Signal one process."""
        await self._ask("signal", str(number), str(pid))

    async def extend(self, ttl_s: float) -> None:
        """Let it end in `ttl_s` seconds. The owner keeps the time: without an owner it ends anyway."""
        self._require()
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(ttl_s, self._expire)

    def _expire(self) -> None:
        self._lose("its time to live is over")
        self.close()

    def close(self) -> None:
        """Let go of it: its process 1 then reads end-of-file, and ends."""
        self._timer.cancel()
        self._stream.close()
        self._listening.cancel()
        self._lose("it was closed")

    async def _shell(self, script: str, path: str, *more: str) -> docker_exec.ExecProcess:
        path = path if path.startswith("/") else f"{WORKDIR}/{path}"
        return await self.spawn(
            ["sh", "-c", script, "sh", path, *more], env={"LC_ALL": "C"}, cwd="/", timeout_s=None
        )

    async def _ask(self, *words: str) -> None:
        self._require()
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._stream.writer.write(f"{number} {' '.join(words)}\n".encode())
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await answer
        except TimeoutError as error:
            raise SandboxTimeout(
                f"the sandbox did not answer in {ANSWER_TIMEOUT_S:g} s",
                limit="answer",
                limit_s=ANSWER_TIMEOUT_S,
                elapsed_s=ANSWER_TIMEOUT_S,
            ) from error
        finally:
            self._answers.pop(number, None)

    def _require(self) -> None:
        if self._lost is not None:
            raise SandboxDead(self._lost)

    async def _listen(self) -> None:
        buffer = b""
        try:
            while (piece := await self._stream.read())[1]:
                if piece[0] != STDOUT:
                    continue
                *lines, buffer = (buffer + piece[1]).split(b"\n")
                for line in lines:
                    self._take(line)
        except (EOFError, OSError):
            pass  # the usual end
        self._lose("it was killed, or its process 1 ended")

    def _take(self, line: bytes) -> None:
        word, _, number = line.partition(b" ")
        if word == b"ready" and not self._ready.done():
            self._ready.set_result(None)
        elif number.isdigit() and int(number) in self._answers:
            answer = self._answers[int(number)]
            if not answer.done():
                answer.set_result(None)

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        for future in (self._ready, *self._answers.values()):
            if not future.done():
                future.set_exception(SandboxDead(self._lost))
                future.exception()  # nobody may be waiting


def _file_error(path: str, said: bytes | bytearray) -> SandboxError:
    text = said.decode(errors="replace").strip()
    where = f"{path}: {text} (in the sandbox)"
    if "No such file" in text or "Not a directory" in text or "nonexistent directory" in text:
        return SandboxFileNotFound(2, where)
    if "ermission denied" in text or "Read-only" in text or "not permitted" in text:
        return SandboxPermissionError(13, where)
    if "No space left" in text:
        return SandboxDiskFull(28, where)
    return SandboxError(where)
