"""The part of a sandbox that moving files needs, as plain processes in a folder of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from vime_agents.errors import CommandNotFound
from vime_agents.sandbox import ExecResult

PIPE = asyncio.subprocess.PIPE


class HostProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionResetError as error:
            raise BrokenPipeError from error

    async def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def output(self) -> AsyncIterator[tuple[Literal["stdout", "stderr"], bytes]]:
        assert self._process.stderr is not None
        while self._process.stdout is not None and (piece := await self._process.stdout.read(1 << 16)):
            yield "stdout", piece
        while piece := await self._process.stderr.read(1 << 16):
            yield "stderr", piece

    async def wait(self) -> ExecResult:
        code = await self._process.wait()
        return ExecResult(
            exit_code=None if code < 0 else code,
            signal=-code if code < 0 else None,
            stdout=b"",
            stderr=b"",
            stdout_bytes=0,
            stderr_bytes=0,
            duration_s=0.0,
        )

    async def kill(self, signal: int = 9) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, signals.Signals(signal))
        # `wait` waits for the pipes too, and nobody reads them any more.
        getattr(self._process, "_transport").close()  # noqa: B009
        await self._process.wait()


class HostBox:
    """Only `spawn`; relative paths are below `folder`."""

    def __init__(self, folder: Path, path: str = "/usr/bin:/bin") -> None:
        self.folder, self.path = folder, path
        self.spawned: list[HostProcess] = []

    async def spawn(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> HostProcess:
        return await self._spawn(command, PIPE, PIPE, env, cwd)

    async def _spawn(
        self,
        command: Sequence[str],
        stdin: int,
        stdout: int,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> HostProcess:
        program = next(
            (p for f in self.path.split(":") if os.access(p := f"{f}/{command[0]}", os.X_OK)), None
        )
        if program is None:
            raise CommandNotFound(command[0])
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                program,
                *command[1:],
                stdin=stdin,
                stdout=stdout,
                stderr=PIPE,
                cwd=cwd or self.folder,
                env={"PATH": self.path, **(env or {})},
                start_new_session=True,
            )
        )
        try:
            self.spawned.append(HostProcess(await asyncio.shield(starting)))
        except asyncio.CancelledError:
            await HostProcess(await starting).kill()
            raise
        return self.spawned[-1]


class HostBoxOnFiles(HostBox):
    """One that gives its programs open files, too."""

    async def spawn_on(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None
    ) -> HostProcess:
        return await self._spawn(
            command, PIPE if stdin is None else stdin, PIPE if stdout is None else stdout
        )
