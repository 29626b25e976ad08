"""The clock of the running event loop, set by hand: what waits for a time waits until a test says so."""

from __future__ import annotations

import asyncio


class LoopClock:
    """Stands still from now on."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        setattr(loop, "time", lambda: self.now)  # noqa: B010 - the loop's own method is read-only to types

    async def advance(self, seconds: float) -> None:
        """So many seconds pass; whoever waited for a time in between has gone on as far as it could."""
        self.now += seconds
        await settled()


async def settled() -> None:
    """Whatever can go on without time or input has."""
    for _ in range(50):
        await asyncio.sleep(0)
