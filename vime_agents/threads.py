"""Between event loops and plain code: an author's blocking functions off the loop, coroutines without one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from vime_agents.errors import ContractError

MAX_THREADS = 32
"""Blocking functions of authors' that run at once in this process."""


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="vime-hook")


async def run_in_thread(function: Callable[[], Any]) -> Any:
    """Run a blocking function of an author's off the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_executor(), function)


async def call_hook(hook: Callable[..., Any], *args: Any) -> Any:
    """Call an author's function: awaited if it is a coroutine's, else off the event loop."""
    if inspect.iscoroutinefunction(hook):
        return await hook(*args)
    result = await run_in_thread(lambda: hook(*args))
    # A decorated `async def` does not look like one.
    return await result if inspect.isawaitable(result) else result


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="vime-env-loop", daemon=True).start()
    return loop


# A forked child (gymnasium's AsyncVectorEnv makes some) has these in memory, but not their threads.
os.register_at_fork(after_in_child=_executor.cache_clear)
os.register_at_fork(after_in_child=_background_loop.cache_clear)


def run_on_background_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine from plain code. Raises ContractError: called on that very loop."""
    loop = _background_loop()
    if threading.current_thread().name == "vime-env-loop":
        coroutine.close()
        raise ContractError("the sync face was called inside an env hook; await areset/astep there")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        with contextlib.suppress(RuntimeError):
            future.cancel()
        raise
