"""Check that the event loop is never kept waiting: hundreds of episodes share it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from vime_agents.checking.author import AuthorCode
from vime_agents.checking.kit import Session, check

_ROUNDS = 3


class LoopWatch:
    """Measures how long the running event loop is blocked, and at which of the author's lines."""

    def __init__(self, author: AuthorCode, *, least_s: float, every_s: float = 0.005) -> None:
        """`least_s`: shorter standstills are not noted. `every_s`: between two looks."""
        self._author, self._least_s, self._every_s = author, least_s, every_s
        self.lag_s: dict[str, float] = {}
        """Line -> longest time that the loop stood still there."""
        self._beat = time.monotonic()
        self._over = threading.Event()

    async def __aenter__(self) -> LoopWatch:
        loop_thread = threading.get_ident()
        self._beat = time.monotonic()
        self._heart = asyncio.ensure_future(self._keep_beating())
        self._thread = threading.Thread(target=self._watch, args=(loop_thread,), daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._heart.cancel()
        await asyncio.gather(self._heart, return_exceptions=True)
        await asyncio.to_thread(self._thread.join)

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(self._every_s)

    def _watch(self, loop_thread: int) -> None:
        while not self._over.wait(self._every_s):
            lag_s = time.monotonic() - self._beat
            if lag_s < self._least_s:
                continue
            line = self._author.line_of_frame(sys._current_frames().get(loop_thread))
            if line is not None:
                self.lag_s[line] = max(lag_s, self.lag_s.get(line, 0.0))


@check(
    "loop-blocking",
    family="async",
    fix="write the hook as plain `def`, which is run in a thread, or await asyncio.to_thread(...) in it",
)
async def loop_blocking(session: Session) -> None:
    """No async hook or tool keeps the event loop from other episodes for long: 50 ms, or --slow-ms."""
    most_s = session.scale.lag_s
    rounds: list[Mapping[str, float]] = []
    for _ in range(_ROUNDS):  # a busy machine delays once, a blocking line each time
        async with LoopWatch(session.author, least_s=most_s / 2) as watch:
            for seed, policy in enumerate(session.policies().values()):
                await session.play(policy, seed=seed, task=0)
        rounds.append(watch.lag_s)
    for line in rounds[0]:
        lag_s = min(lags.get(line, 0.0) for lags in rounds)
        if lag_s > most_s:
            session.find(
                f"the event loop stands still for {lag_s * 1000:.0f} ms; {most_s * 1000:g} ms is the most",
                where=line,
            )
