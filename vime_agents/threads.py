"""Between event loops and plain code: an author's blocking functions off the loop, coroutines without one."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import queue
import threading
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

from vime_agents.errors import ContractError

MAX_THREADS = 32
"""Blocking functions of authors' that run at once in this process."""


class _Answers:
    """What has come back for the coroutines of one loop; the loop is woken once for all of it.

    Waking it costs a system call, in which a thread gives the interpreter away; it waits for it up to 5 ms.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """From a thread."""
        self._ready.append((future, value, error))
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                future.get_loop().call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._is_woken = False  # before the deque is read: what comes later wakes the loop again
        while self._ready:
            future, value, error = self._ready.popleft()
            if future.done():  # cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class _Threads:
    """Up to `MAX_THREADS` threads for blocking functions, each started when it is first needed.

    A `ThreadPoolExecutor` behind `run_in_executor` does the same for four times the processor's time, most of
    it for its own futures; with a thousand envs that is a third of the time of their work.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any], _Answers] | None] = (
            queue.SimpleQueue()
        )
        self._answers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Answers] = WeakKeyDictionary()
        self._threads: list[threading.Thread] = []
        self._idle: deque[None] = deque()
        """An entry for each thread that has no job; more, where jobs had to wait for one."""
        self._starting = threading.Lock()

    def submit(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Its result, in the running `loop`. A future that is cancelled in time is not begun."""
        answers = self._answers.get(loop)
        if answers is None:
            answers = self._answers.setdefault(loop, _Answers())
        future = loop.create_future()
        self._jobs.put((function, future, answers))
        try:
            self._idle.pop()
        except IndexError:
            if len(self._threads) < MAX_THREADS:
                self._start()
        return future

    def finish(self) -> None:
        """Wait for what was submitted, at the interpreter's end."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        with self._starting:
            index = len(self._threads)
            if index < MAX_THREADS:
                thread = threading.Thread(target=self._work, name=f"vime-hook_{index}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future, answers = job
            outcome = None if future.cancelled() else _outcome(function)
            self._idle.append(None)  # before the answer: whoever waits for it may call again at once
            if outcome is not None:
                answers.put(future, *outcome)
            del job, function, future, answers, outcome  # an idle thread keeps no env alive


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except StopIteration as error:  # no future takes it
        stopped = RuntimeError(f"{error!r} was raised in a thread")
        stopped.__cause__ = error
        return None, stopped
    except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
        return None, error


@cache
def _threads() -> _Threads:
    threads = _Threads()
    atexit.register(threads.finish)
    return threads


async def run_in_thread(function: Callable[[], Any]) -> Any:
    """Run a blocking function of an author's off the event loop; at once where `run_sync` needs no loop."""
    loop = _get_running_loop()
    return function() if loop is None else await _threads().submit(loop, function)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """As `inspect.iscoroutinefunction`, in less time where a function or method is just that."""
    code = getattr(function, "__code__", None)
    return (
        inspect.iscoroutinefunction(function) if code is None else bool(code.co_flags & inspect.CO_COROUTINE)
    )


async def call_hook(hook: Callable[..., Any], *args: Any) -> Any:
    """Call an author's function: awaited if it is a coroutine's, else off the event loop."""
    if is_coroutine_function(hook):
        return await in_a_loop(hook(*args))
    result = hook(*args) if _get_running_loop() is None else await run_in_thread(partial(hook, *args))
    # A decorated `async def` does not look like one. (`inspect.isawaitable` takes a tenth of a small step.)
    return await in_a_loop(result) if hasattr(result, "__await__") else result


async def in_a_loop(awaitable: Awaitable[Any]) -> Any:
    """Await what may need a loop; on the background loop where `run_sync` has none."""
    return await awaitable if _get_running_loop() else run_on_background_loop(_awaited(awaitable))


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="vime-env-loop", daemon=True).start()
    return loop


# A forked child (gymnasium's AsyncVectorEnv makes some) has these in memory, but not their threads.
os.register_at_fork(after_in_child=_threads.cache_clear)
os.register_at_fork(after_in_child=_background_loop.cache_clear)


def run_sync(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from plain code, in this thread and without a loop.

    For coroutines that wait for nothing but what this module calls: there, blocking functions are called at
    once, and what is a coroutine's runs on the background loop. Inside of a running loop, all of it does: an
    author's blocking function is not to find a loop in its thread.

    Raises:
        ContractError: it awaited something else.
    """
    if _get_running_loop() is not None:
        return run_on_background_loop(coroutine)
    try:
        # In a copy, as a task's: what a hook sets in its context is not the caller's.
        copy_context().run(coroutine.send, None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise ContractError(f"{coroutine.__qualname__} waits for an event loop; await it in one")


def needs_loop(cls: type, *framework: str) -> bool:
    """Whether `run_sync` is not for a class: it has coroutines of its own, or replaces its framework's.

    Args:
        cls: an env's.
        framework: full names of those of its base classes whose coroutines wait for nothing but hooks.
    """
    known: set[str] = set()
    own: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if f"{base.__module__}.{base.__qualname__}" in framework:
            known |= {name for name, part in vars(base).items() if is_coroutine_function(part)}
            own = {name: part for name, part in own.items() if name not in vars(base)}
        else:
            own |= vars(base)
    return any(
        name in known or is_coroutine_function(getattr(part, "__func__", part)) for name, part in own.items()
    )


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
