"""A sandbox whose image has Python: our runner is process 1, and answers in milliseconds."""

from __future__ import annotations

import asyncio

from vime_sandboxes import runner_bundle, runner_link
from vime_sandboxes.docker_engine import Engine
from vime_sandboxes.docker_stream import Stream

NO_PYTHON = 97
"""Exit status of process 1 when the image's Python is too old."""


def runner_source() -> bytes:
    """What process 1 reads first, and becomes."""
    return runner_bundle.source()


class RunnerLink(runner_link.RunnerLink):
    """Speaks to one such container. On the io thread only."""

    def __init__(self, _engine: Engine, _container: str, stream: Stream, _user: str) -> None:
        self._stream = stream
        self._timer: asyncio.TimerHandle | None = None
        self._reason: str | None = None
        super().__init__(stream, stream.writer, self._lost)

    async def ready(self) -> None:
        """Wait until it can be used. Raises SandboxDead."""
        self._stream.writer.write(runner_source())
        await super().ready()

    async def check(self) -> None:
        """Raise SandboxDead unless it answers."""
        await self.ping()

    async def extend(self, ttl_s: float) -> None:
        """Let it end in `ttl_s` seconds. The owner keeps the time: without an owner it ends anyway."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(ttl_s, self._expire)

    def close(self) -> None:
        """Let go of it: the runner then reads end-of-file, and ends."""
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def _expire(self) -> None:
        self._reason = "its time to live is over"
        self.close()

    def _lost(self, reason: str) -> str:
        said = self._stream.errors.decode(errors="replace").strip()
        reason = self._reason or reason
        return f"{reason}; {said}" if said else reason
