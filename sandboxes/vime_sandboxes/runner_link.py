"""Everything that a runner can be asked, over any stream of bytes to it. Lives on the input/output thread.

Backends put the runner inside (`runner_bundle`), connect its standard input and output, and give that here.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from vime_agents.errors import (
    CommandNotFound,
    ContractError,
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxPermissionError,
    SandboxTimeout,
)
from vime_agents.sandbox import ExecResult
from vime_sandboxes import runner_frames as frames
from vime_sandboxes.connection import Call, Connection, Reader, Writer
from vime_sandboxes.runner_process import RunnerProcess, exec_result

T = TypeVar("T")
ANSWER_TIMEOUT_S = 15.0
"""How long the runner may take for what is not a command; added to a command's own time."""
MAX_STDIN_BYTES = 16 << 20
CANNOT_EXECUTE = 126
"""Exit status, as in a shell, of a command that exists but cannot be started."""
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunnerLink:
    """Speaks to one runner.

    Raises (every method):
        SandboxDead (or what `on_lost` made of it): the runner is gone. SandboxTimeout: it did not answer; the
        link is closed then, because what it says later cannot be trusted.
    """

    def __init__(self, reader: Reader, writer: Writer, on_lost: Callable[[str], str | SandboxDead]) -> None:
        """`on_lost(reason)` is called once when the runner is gone, and words the reason (or types it)."""
        self.connection = Connection(reader, writer, on_lost)

    @property
    def lost(self) -> SandboxDead | None:
        """Why the runner is gone; None while it is there."""
        return self.connection.lost

    async def ready(self) -> None:
        """Wait for the runner's first word."""
        await asyncio.shield(self.connection.ready)

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
        """As `Sandbox.exec`; whether memory ran out is for the caller to find."""
        fields = [
            str(timeout_s).encode(),
            str(max_output).encode(),
            encode(cwd),
            stdin,
            *_packed(command, env),
        ]
        kind, answer, call = await self._ask(frames.EXEC, fields, timeout_s=timeout_s, room=2 * max_output)
        if kind == frames.FAILED:
            return not_started(command[0], cwd, answer)
        return exec_result(answer, b"".join(call.stdout), b"".join(call.stderr))

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float | None,
        files: Mapping[int, int] | None = None,
    ) -> RunnerProcess:
        """As `Sandbox.spawn`. When the caller is cancelled, what was begun is killed.

        `files`: open files of this process to be standard streams (by number, 0 or 1) of the program. Only
        over a Unix socket.
        """
        process = RunnerProcess(self.connection, ANSWER_TIMEOUT_S)
        limit_s = float("inf") if timeout_s is None else timeout_s
        fields = [str(limit_s).encode(), encode(cwd), *_packed(command, env)]
        try:
            if files:
                fields += [str(stream).encode() for stream in files]
                given = list(files.values())
                await self._answered(self.connection.hand_over(given, ANSWER_TIMEOUT_S))
            self.connection.send(process.request, frames.SPAWN, fields)
            kind, answer = await self._answered(
                self.connection.answer(Call(process.started, 0), ANSWER_TIMEOUT_S)
            )
        except BaseException:
            self.connection.unsubscribe(process.request)
            self.connection.kill(process.request)
            raise
        if kind == frames.FAILED:
            self.connection.unsubscribe(process.request)
            failed = not_started(command[0], cwd, answer)
            raise SandboxError(f"cannot start {command[0]!r}: {failed.stderr.decode(errors='replace')}")
        return process

    async def read(self, path: str, max_bytes: int) -> bytes:
        """As `Sandbox.read`."""
        content = bytearray()
        while True:
            fields = [encode(path), str(len(content)).encode(), str(frames.CHUNK).encode()]
            kind, answer, _ = await self._ask(frames.READ, fields)
            if kind == frames.FAILED:
                raise file_error(path, answer)
            content += answer[0]
            if len(content) > max_bytes:
                raise SandboxOutputTooLarge(f"{path}: more than max_bytes={max_bytes}")
            if len(answer[0]) < frames.CHUNK:
                return bytes(content)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """As `Sandbox.write`."""
        for start in range(0, max(len(data), 1), frames.CHUNK):
            piece = data[start : start + frames.CHUNK]
            fields = [encode(path), str(mode).encode(), b"1" if start else b"0", piece]
            kind, answer, _ = await self._ask(frames.WRITE, fields)
            if kind == frames.FAILED:
                raise file_error(path, answer)

    async def ping(self) -> None:
        """Whether it answers."""
        await self._ask(frames.PING, [])

    async def extend(self, ttl_s: float) -> None:
        """Let the runner end `ttl_s` seconds from now."""
        await self._ask(frames.EXTEND, [repr(float(ttl_s)).encode()])

    def close(self) -> None:
        """Let go of it: the runner then reads end-of-file, and ends."""
        self.connection.close()

    async def _ask(
        self, kind: int, fields: Sequence[bytes], *, timeout_s: float = 0.0, room: int = 0
    ) -> tuple[int, list[bytes], Call]:
        return await self._answered(
            self.connection.call(kind, fields, timeout_s=timeout_s + ANSWER_TIMEOUT_S, room=room)
        )

    async def _answered(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except SandboxTimeout as error:
            self.connection.close(str(error))
            raise


def check_command(command: Sequence[str], stdin: bytes = b"") -> None:
    """Refuse what no runner can start. Raises ContractError."""
    if isinstance(command, str) or not command:
        raise ContractError(f"a command is a non-empty list of strings, got {command!r:.200}")
    if len(stdin) > MAX_STDIN_BYTES:
        raise ContractError(f"stdin of {len(stdin)} bytes; above {MAX_STDIN_BYTES} write a file instead")


def not_started(program: str, cwd: str, answer: Sequence[bytes]) -> ExecResult:
    """What it means that a command did not start: an error, or a result where the inside is to blame."""
    stage, number, text = answer[0].decode(), int(answer[1]), answer[2]
    if stage == "cwd":
        raise file_error(f"cwd {cwd!r}", answer)
    if stage == "exec" and number in _MISSING:
        raise CommandNotFound(f"no program {program!r} in the sandbox")
    if stage == "exec" and number in _FORBIDDEN:
        raise SandboxPermissionError(number, f"may not run {program!r} in the sandbox")
    # Too many processes, too long arguments: what the inside did, not what the infrastructure did.
    return ExecResult(
        exit_code=CANNOT_EXECUTE,
        stdout=b"",
        stderr=text,
        stdout_bytes=0,
        stderr_bytes=len(text),
        duration_s=0.0,
    )


def file_error(path: str, answer: Sequence[bytes]) -> SandboxError:
    """What a FAILED answer about a path means."""
    number, text = int(answer[1]), answer[2].decode(errors="replace")
    message = f"{path}: {text} (in the sandbox)"
    if number in _MISSING:
        return SandboxFileNotFound(number, message)
    if number in _FORBIDDEN:
        return SandboxPermissionError(number, message)
    if number in _FULL:
        return SandboxDiskFull(number, message)
    return SandboxError(message)


def encode(text: str) -> bytes:
    """Text for the runner. Any text of a model's must pass, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def _packed(command: Sequence[str], env: Mapping[str, str]) -> tuple[bytes, bytes]:
    arguments = frames.pack(encode(a) for a in command)
    return arguments, frames.pack(encode(part) for item in env.items() for part in item)
