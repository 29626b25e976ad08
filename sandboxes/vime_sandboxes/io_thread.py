"""One long-lived thread with an event loop that talks to every local sandbox of this process.

Three reasons: the view of a private Python (`profile`) belongs to one thread; a sandbox must work from any
event loop (an env may be driven by one loop and closed by another); and a caller that blocks its own loop
must not stall the others' commands.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

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


async def on_io_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that runs on the thread; cancelling the caller cancels it."""
    return await asyncio.wrap_future(submit(coroutine))
