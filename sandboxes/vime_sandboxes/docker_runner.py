"""A sandbox whose image has Python: our runner is process 1, and answers in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

from vime_agents.errors import SandboxOutputTooLarge, SandboxTimeout
from vime_agents.sandbox import ExecResult
from vime_sandboxes import docker_exec, runner
from vime_sandboxes.connection import Call, Connection
from vime_sandboxes.docker_engine import Engine
from vime_sandboxes.docker_stream import Stream
from vime_sandboxes.docker_supervisor import ExecSupervisor
from vime_sandboxes.local import _encode, _file_error, _not_started

ANSWER_TIMEOUT_S = 15.0
NO_PYTHON = 97
"""Exit status of process 1 when the image's Python is too old."""


@cache
def runner_source() -> bytes:
    """What process 1 reads first, and becomes."""
    return Path(runner.__file__).read_bytes()


class RunnerLink:
    """Speaks to one such container. On the io thread only."""

    def __init__(self, engine: Engine, container: str, stream: Stream, user: str) -> None:
        self._engine, self._container, self._stream, self._user = engine, container, stream, user
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None
        self._connection = Connection(stream.writer, self._lost)

    async def ready(self) -> None:
        """Wait until it can be used. Raises SandboxDead."""
        self._stream.writer.write(runner_source())
        reader = cast(asyncio.StreamReader, self._stream)  # all that is asked of it is `readexactly`
        self._connection._task = asyncio.create_task(self._connection._listen(reader))
        await self._connection.ready

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
        fields = [
            str(timeout_s).encode(),
            str(max_output).encode(),
            _encode(cwd),
            stdin,
            runner.pack(_encode(a) for a in command),
            runner.pack(_encode(part) for item in env.items() for part in item),
        ]
        kind, answer, call = await self._ask(runner.EXEC, fields, timeout_s=timeout_s, room=2 * max_output)
        if kind == runner.FAILED:
            return _not_started(command[0], answer)
        code, number, timed_out, out_bytes, err_bytes = (int(f) for f in answer[:5])
        return ExecResult(
            exit_code=None if number else code,
            stdout=b"".join(call.stdout),
            stderr=b"".join(call.stderr),
            stdout_bytes=out_bytes,
            stderr_bytes=err_bytes,
            duration_s=float(answer[5]),
            signal=number or None,
            timed_out=bool(timed_out),
        )

    async def spawn(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, timeout_s: float | None
    ) -> docker_exec.ExecProcess:
        """Start a program; see the protocol."""
        return await docker_exec.start(
            self._engine,
            self._container,
            ExecSupervisor(self._engine, self._container, self._user, self.check),
            command,
            env=env,
            cwd=cwd,
            user=self._user,
            timeout_s=timeout_s,
        )

    async def read(self, path: str, max_bytes: int) -> bytes:
        """A file's content; see the protocol."""
        content = bytearray()
        while True:
            fields = [_encode(path), str(len(content)).encode(), str(runner.CHUNK).encode()]
            kind, answer, _ = await self._ask(runner.READ, fields)
            if kind == runner.FAILED:
                raise _file_error(path, answer)
            content += answer[0]
            if len(content) > max_bytes:
                raise SandboxOutputTooLarge(f"{path}: more than max_bytes={max_bytes}")
            if not answer[0]:
                return bytes(content)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """Write a file, making its folders; see the protocol."""
        for start in range(0, max(len(data), 1), runner.CHUNK):
            piece = data[start : start + runner.CHUNK]
            fields = [_encode(path), str(mode).encode(), b"1" if start else b"0", piece]
            kind, answer, _ = await self._ask(runner.WRITE, fields)
            if kind == runner.FAILED:
                raise _file_error(path, answer)

    async def check(self) -> None:
        """Raise SandboxDead unless it answers."""
        await self._ask(runner.PING, [])

    async def extend(self, ttl_s: float) -> None:
        """Let it end in `ttl_s` seconds. The owner keeps the time: without an owner it ends anyway."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(ttl_s, self._expire)

    def close(self) -> None:
        """Let go of it: the runner then reads end-of-file, and ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection.close()

    async def _ask(
        self, kind: int, fields: Sequence[bytes], *, timeout_s: float = 0.0, room: int = 0
    ) -> tuple[int, list[bytes], Call]:
        try:
            return await self._connection.call(
                kind, fields, timeout_s=timeout_s + ANSWER_TIMEOUT_S, room=room
            )
        except SandboxTimeout:
            self.close()  # whatever it says later cannot be trusted
            raise

    def _expire(self) -> None:
        self._reason = "its time to live is over"
        self.close()

    def _lost(self, reason: str) -> str:
        said = self._stream.errors.decode(errors="replace").strip()
        reason = self._reason or reason
        return f"{reason}; {said}" if said else reason
