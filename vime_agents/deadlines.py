"""Limits of time that stand still while nothing is done for whoever they limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Self


class Deadline:
    """`asyncio.timeout`, but for time on the clock: what is awaited in `off_the_clock()` does not count.

    Several tasks below it may be off the clock at once; it stands still while any of them is. Whoever leaves
    the clock has a bound of its own, with a name: see `policies/admission.py`.
    """

    def __init__(self, limit_s: float | None) -> None:
        """`limit_s`: seconds on the clock; None: there is no limit, and the time is only taken."""
        self.limit_s = limit_s
        self._pauses = 0
        self._off_s = 0.0
        self._over = False

    @property
    def elapsed_s(self) -> float:
        """Seconds on the clock since it was entered, or while it was."""
        if self._over:
            return self._elapsed_s
        now = asyncio.get_running_loop().time()
        return (self._paused_at if self._pauses else now) - self._started_at - self._off_s

    def expired(self) -> bool:
        """Whether the limit fired."""
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        self._started_at = asyncio.get_running_loop().time()
        self._timeout = asyncio.timeout(self.limit_s)
        await self._timeout.__aenter__()
        self._token = _running.set((*_running.get(), self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises TimeoutError: the limit fired."""
        self._elapsed_s, self._over = self.elapsed_s, True
        _running.reset(self._token)
        await self._timeout.__aexit__(kind, error, trace)

    def _stop(self) -> None:
        self._pauses += 1
        if self._pauses > 1:
            return
        self._paused_at = asyncio.get_running_loop().time()
        self._due = self._timeout.when()
        self._reschedule(None)

    def _go_on(self) -> None:
        self._pauses -= 1
        if self._pauses:
            return
        off_s = asyncio.get_running_loop().time() - self._paused_at
        self._off_s += off_s
        self._reschedule(None if self._due is None else self._due + off_s)

    def _reschedule(self, when: float | None) -> None:
        if not self._over and not self._timeout.expired():
            self._timeout.reschedule(when)


_running: ContextVar[tuple[Deadline, ...]] = ContextVar("running deadlines", default=())


@contextlib.contextmanager
def off_the_clock() -> Iterator[None]:
    """Stops every Deadline that this task runs under, those of the tasks that it was made by included."""
    deadlines = _running.get()
    for deadline in deadlines:
        deadline._stop()
    try:
        yield
    finally:
        for deadline in deadlines:
            deadline._go_on()
