"""Removing containers: also what is only just being created, and what a silent daemon still holds."""

from __future__ import annotations

import asyncio

from vime_agents.errors import SandboxError
from vime_sandboxes.docker_engine import ApiError, Engine

REMOVE_TIMEOUT_S = 20.0
_POLL_S = 0.02
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Between attempts in the background. What is left after that is the reaper's."""


class Remover:
    """Removes containers by name; never raises, bounded in time. On the io thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    async def remove(self, name: str, creating: asyncio.Future[str] | None = None) -> None:
        """Remove a container. One that `creating` may bring into being later is removed then.

        Returns after REMOVE_TIMEOUT_S at the latest, or when the daemon does not answer; further attempts are
        made in the background.
        """
        first = asyncio.Event()
        task = asyncio.create_task(self._until_gone(name, creating, first))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(REMOVE_TIMEOUT_S):
                await first.wait()
        except TimeoutError:
            return

    async def _until_gone(
        self, name: str, creating: asyncio.Future[str] | None, first: asyncio.Event
    ) -> None:
        may_come = False
        if creating is not None:
            await asyncio.wait([creating])
            # The daemon said neither yes nor no: it may still be at it.
            error = creating.exception()
            may_come = error is not None and not isinstance(error, ApiError)
        for pause_s in (*_PAUSES_S, 0.0):
            try:
                existed = await remove_container(self._engine, name)
                if existed or not may_come:
                    break
                first.set()
            except ApiError:
                pass  # the daemon could not just now
            except SandboxError:
                first.set()  # it does not answer: nobody needs to wait for that
            await asyncio.sleep(pause_s)
        first.set()


async def remove_container(engine: Engine, name: str) -> bool:
    """Remove a container and wait until it is gone; False when there is none."""
    seen = False
    while True:
        try:
            await engine.call(
                f"removing {name}", lambda client: client.remove_container(name, force=True, v=True)
            )
        except ApiError as error:
            if error.status == 404:
                return seen
            if error.status != 409 or "already in progress" not in str(error):
                raise
            # The daemon is at it by itself, because process 1 has ended.
            seen = True
            await asyncio.sleep(_POLL_S)
        else:
            return True
