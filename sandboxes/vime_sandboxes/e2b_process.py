"""A program that goes on inside an E2B sandbox; see `vime_agents.sandbox.SandboxProcess`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from vime_agents.errors import SandboxDead, SandboxError
from vime_agents.sandbox import ExecResult
from vime_sandboxes.runner_process import Piece, RunnerProcess

T = TypeVar("T")


class E2BProcess:
    """The runner's program; tells a dead sandbox from a connection that broke. Works from any event loop."""

    def __init__(self, program: RunnerProcess, why: Callable[[SandboxDead], Awaitable[SandboxError]]) -> None:
        """`why` finds out what it means that the runner no longer answers."""
        self.pid = program.pid
        self._program, self._why = program, why

    async def write(self, data: bytes) -> None:
        """Write to its standard input; waits while the program does not read. Raises BrokenPipeError."""
        await self._explained(self._program.write(data))

    async def close_stdin(self) -> None:
        """Let it read end-of-file, once it has read what was written."""
        await self._explained(self._program.close_stdin())

    async def output(self) -> AsyncGenerator[Piece, None]:
        """Pieces as they come, until both streams end. For one reader; a slow one holds the program back."""
        pieces = self._program.output()
        try:
            async for piece in pieces:
                yield piece
        except SandboxDead as error:
            raise await self._why(error) from error
        finally:
            await pieces.aclose()

    async def wait(self) -> ExecResult:
        """Wait for its end. Output that nobody reads through `output` is dropped from here on."""
        return await self._explained(self._program.wait())

    async def kill(self, signal: int = 9) -> None:
        """Signal it; SIGKILL is for it and everything that it started."""
        await self._explained(self._program.kill(signal))

    async def _explained(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except SandboxDead as error:
            raise await self._why(error) from error
