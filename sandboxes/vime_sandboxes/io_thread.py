"""One long-lived thread with an event loop that talks to every local sandbox of this process.

Three reasons: the view of a private Python (`profile`) belongs to one thread; a sandbox must work from any
event loop (an env may be driven by one loop and closed by another); and a caller that blocks its own loop
must not stall the others' commands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)

_running: set[Future[Any]] = set()
"""The loop itself does not hold on to what it runs: work that nobody waits for would be collected midway."""


@cache
def io_loop() -> asyncio.AbstractEventLoop:
    """The loop; started on first use."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="vime-sandbox-io", daemon=True).start()
    return loop


# A forked child has the loop's memory but not its thread.
os.register_at_fork(after_in_child=io_loop.cache_clear)


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the thread. It goes on though nobody waits for it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, io_loop())
    _running.add(future)
    future.add_done_callback(_running.discard)
    return future


async def made(making: Coroutine[Any, Any, T], end: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """Await what `making` makes on the thread. When the caller is cancelled, it is finished, then `end`ed."""
    future = submit(making)
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        submit(_end_when_made(future, end))
        raise


async def _end_when_made(future: Future[T], end: Callable[[T], Coroutine[Any, Any, object]]) -> None:
    (it,) = await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)
    if isinstance(it, BaseException):
        return  # there is nothing to end, and nobody who wants to know why
    (problem,) = await asyncio.gather(end(it), return_exceptions=True)
    if problem is not None:
        _log.warning("what a cancelled caller wanted was made, but could not be ended: %r", problem)


async def on_io_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that runs on the thread; cancelling the caller cancels it."""
    return await asyncio.wrap_future(submit(coroutine))
