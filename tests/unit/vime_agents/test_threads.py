"""Blocking functions off the loop, and coroutines without one."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from vime_agents.errors import ContractError
from vime_agents.threads import MAX_THREADS, call_hook, in_a_loop, needs_loop, run_in_thread, run_sync

WHO = contextvars.ContextVar("who", default="nobody")


class Gate:
    """Holds the threads that come to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.opened = threading.Event()

    def __call__(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.opened.wait(30)
        with self.lock:
            self.inside -= 1


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


# --------------------------------------------------------------------------------------------- in a thread


async def test_results_and_errors_come_back_to_whoever_waits() -> None:
    def half(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n // 2

    results = await asyncio.gather(
        *(run_in_thread(functools.partial(half, n)) for n in range(200)), return_exceptions=True
    )
    assert results[::2] == list(range(100))
    assert [(type(e), *e.args) for e in results[1::2]] == [(ValueError, n) for n in range(1, 200, 2)]


async def test_what_no_future_takes_is_an_error_all_the_same() -> None:
    def stop() -> None:
        raise StopIteration(3)

    with pytest.raises(RuntimeError, match=r"StopIteration\(3\)"):
        await run_in_thread(stop)
    with pytest.raises(SystemExit):  # a hook that calls sys.exit
        await run_in_thread(sys.exit)
    assert await run_in_thread(lambda: "still here") == "still here"


async def test_as_many_at_once_as_there_are_threads_and_no_more() -> None:
    gate = Gate()
    calls = [asyncio.ensure_future(run_in_thread(gate)) for _ in range(MAX_THREADS + 20)]
    await until(lambda: gate.inside == MAX_THREADS)
    gate.opened.set()
    await asyncio.gather(*calls)
    assert (gate.most, gate.inside) == (MAX_THREADS, 0)


async def test_what_is_cancelled_in_time_is_not_begun() -> None:
    gate, begun = Gate(), []
    holding = [asyncio.ensure_future(run_in_thread(gate)) for _ in range(MAX_THREADS)]
    await until(lambda: gate.inside == MAX_THREADS)
    waiting = [asyncio.ensure_future(run_in_thread(functools.partial(begun.append, n))) for n in range(4)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    holding[0].cancel()  # its function goes on, and has no reader
    gate.opened.set()
    await asyncio.gather(*holding, *waiting, return_exceptions=True)
    assert sorted(begun) == [0, 2, 3]


def test_calls_one_after_the_other_share_a_thread() -> None:
    code = """if True:
        import asyncio, threading
        from vime_agents.threads import run_in_thread

        async def main():
            return {await run_in_thread(lambda: threading.current_thread().name) for _ in range(20)}

        print(len(asyncio.run(main())))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    # Now and then a thread has given its answer, and is not yet back when the next call comes.
    assert int(done.stdout) <= 4


def test_each_loop_gets_its_own_answers_and_a_closed_one_none() -> None:
    async def leave(gate: Gate) -> None:
        asyncio.ensure_future(run_in_thread(gate))  # noqa: RUF006 - cancelled with the loop
        await until(lambda: gate.inside)

    gate = Gate()
    asyncio.run(leave(gate))
    gate.opened.set()

    async def names() -> set[int]:
        return set(await asyncio.gather(*(run_in_thread(lambda n=n: n) for n in range(50))))

    found: list[set[int]] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(names()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [set(range(50))] * 4


async def test_an_idle_thread_keeps_nothing_alive() -> None:
    class Env:
        def hook(self) -> None: ...

    env = Env()
    gone = weakref.ref(env)
    await run_in_thread(env.hook)
    del env

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    await until(is_gone)


def test_the_interpreter_waits_for_what_was_begun(tmp_path: Any) -> None:
    code = f"""if True:
        import asyncio, time
        from vime_agents.threads import run_in_thread

        def write():
            time.sleep(0.3)
            open({str(tmp_path / "done")!r}, "w").close()

        async def main():
            asyncio.ensure_future(run_in_thread(write))
            await asyncio.sleep(0.1)

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    assert os.listdir(tmp_path) == ["done"]


# ---------------------------------------------------------------------------------------- without a loop


async def _two_hooks(first: Any, second: Any) -> list[Any]:
    return [await call_hook(first), await call_hook(second)]


def test_plain_functions_run_in_the_callers_thread_and_find_no_loop() -> None:
    def here() -> tuple[str, str]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return threading.current_thread().name, WHO.get()

    WHO.set("caller")
    mine = (threading.current_thread().name, "caller")
    assert run_sync(_two_hooks(here, here)) == [mine, mine]
    assert run_sync(_two_hooks(here, lambda: asyncio.run(asyncio.sleep(0, "its own")))) == [mine, "its own"]


def test_what_hooks_set_in_their_context_stays_among_them() -> None:
    WHO.set("caller")
    assert run_sync(_two_hooks(lambda: bool(WHO.set("hook")), WHO.get)) == [True, "hook"]
    assert WHO.get() == "caller"


def test_what_needs_a_loop_gets_the_background_loop() -> None:
    async def waits() -> tuple[str, str]:
        await asyncio.sleep(0)
        return threading.current_thread().name, WHO.get()

    WHO.set("caller")
    there = ("vime-env-loop", "caller")
    assert run_sync(_two_hooks(waits, lambda: waits())) == [there, there]
    assert run_sync(in_a_loop(waits())) == there


async def test_inside_of_a_running_loop_nothing_runs_in_its_thread() -> None:
    name = lambda: threading.current_thread().name  # noqa: E731
    first, second = run_sync(_two_hooks(name, name))
    assert first.startswith("vime-hook")
    assert second.startswith("vime-hook")


def test_a_coroutine_that_waits_for_something_else_is_refused() -> None:
    closed = []

    class Never:
        def __await__(self):
            yield

    async def waits() -> None:
        try:
            await Never()
        finally:
            closed.append(True)

    with pytest.raises(ContractError, match=r"waits waits for an event loop"):
        run_sync(waits())
    assert closed == [True]


def test_errors_and_interrupts_reach_the_caller_as_they_are() -> None:
    for error in (ValueError("x"), KeyboardInterrupt(), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            run_sync(_two_hooks(time.time, fail))
        assert caught.value is error


def test_a_class_needs_a_loop_for_coroutines_that_are_not_its_frameworks() -> None:
    class Framework:
        async def face(self) -> None: ...

        def hook(self) -> None: ...

    class Plain(Framework):
        def hook(self) -> None: ...

    class Waits(Plain):
        async def hook(self) -> None: ...

    class NoLonger(Waits):
        def hook(self) -> None: ...

    class Static(Plain):
        @staticmethod
        async def fetch() -> None: ...

    class Replaced(Plain):
        def face(self) -> Any:  # what it returns may wait
            return super().face()

    name = f"{__name__}.{Framework.__qualname__}"
    assert not any(needs_loop(cls, name) for cls in (Framework, Plain, NoLonger))
    assert all(needs_loop(cls, name) for cls in (Waits, Static, Replaced))
    assert needs_loop(Plain)  # the framework is not known
