"""Ending commands that were started as execs, by one more exec of the same user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from vime_agents.errors import SandboxDead
from vime_sandboxes.docker_engine import ApiError, Engine


@cache
def supervisor_source() -> str:
    """A shell program that ends trees of processes; asked by lines on its standard input."""
    return Path(__file__).with_name("docker_supervisor.sh").read_text(encoding="utf-8")


class ExecSupervisor:
    """Reaches the processes of one user of a container. Nobody else may: not even root has a capability."""

    def __init__(
        self, engine: Engine, container: str, user: str, ping: Callable[[], Awaitable[None]]
    ) -> None:
        self._engine, self._container, self._user, self._ping = engine, container, user, ping

    async def end_tree(self, mark: str, pid: int) -> None:
        """Kill a command and all that it started."""
        await self._ask(f"0 end {mark} {pid or '-'}\n")

    async def signal(self, number: int, pid: int) -> None:
        """Signal one process."""
        await self._ask(f"0 signal {number} {pid}\n")

    async def ping(self) -> None:
        """Raise SandboxDead when the container is gone."""
        await self._ping()

    async def _ask(self, line: str) -> None:
        what = "ending a command"
        arguments = ["sh", "-c", supervisor_source()]
        try:
            made = await self._engine.call(
                what,
                lambda client: client.exec_create(self._container, arguments, stdin=True, user=self._user),
            )
            stream = await self._engine.stream(
                what, f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False}
            )
        except ApiError as error:
            if error.status in (404, 409):
                raise SandboxDead(f"the container is gone: {error}") from error
            raise
        try:
            stream.writer.write(line.encode())
            stream.end_input()
            while (await stream.read())[1]:
                pass
        finally:
            stream.close()
