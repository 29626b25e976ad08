"""Limits of time that stand still: only what is awaited on the clock counts."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.vime_agents.loop_clock import LoopClock, settled
from vime_agents.deadlines import Deadline, off_the_clock


@pytest.fixture
async def clock() -> LoopClock:
    return LoopClock()


async def test_time_on_the_clock_counts_and_ends_in_a_time_out(clock: LoopClock) -> None:
    async def work() -> None:
        async with Deadline(10.0):
            await asyncio.sleep(100.0)

    task = asyncio.ensure_future(work())
    await settled()
    await clock.advance(9.0)
    assert not task.done()
    await clock.advance(2.0)
    with pytest.raises(TimeoutError):
        await task


async def test_time_off_the_clock_counts_to_none_of_the_limits_around_it(clock: LoopClock) -> None:
    seen: list[tuple[float, float]] = []

    async def work() -> None:
        async with Deadline(10.0) as outer:
            await asyncio.sleep(4.0)
            async with Deadline(5.0) as inner:
                await asyncio.sleep(3.0)
                with off_the_clock():
                    await asyncio.sleep(1000.0)
                seen.append((outer.elapsed_s, inner.elapsed_s))
                await asyncio.sleep(100.0)

    task = asyncio.ensure_future(work())
    await settled()
    for seconds in (4.0, 3.0, 1000.0):
        await clock.advance(seconds)
    assert seen == [(pytest.approx(7.0), pytest.approx(3.0))]
    await clock.advance(1.5)
    assert not task.done()  # the inner one has half a second left
    await clock.advance(1.0)
    with pytest.raises(TimeoutError):
        await task


async def test_it_stands_still_while_any_task_below_it_is_off_the_clock(clock: LoopClock) -> None:
    async def wait(seconds: float) -> None:
        with off_the_clock():
            await asyncio.sleep(seconds)

    async def work() -> float:
        async with Deadline(5.0) as deadline:
            await asyncio.gather(wait(10.0), wait(30.0))
            await asyncio.sleep(4.0)
        return deadline.elapsed_s

    task = asyncio.ensure_future(work())
    await settled()
    for seconds in (10.0, 20.0, 4.0):
        await clock.advance(seconds)
    assert await task == pytest.approx(4.0)


async def test_who_is_off_the_clock_can_be_cancelled_and_other_deadlines_go_on(clock: LoopClock) -> None:
    async def wait() -> None:
        async with Deadline(5.0):
            with off_the_clock():
                await asyncio.sleep(1000.0)

    async def work() -> None:
        async with Deadline(3.0):
            await asyncio.sleep(1000.0)

    waits, works = asyncio.ensure_future(wait()), asyncio.ensure_future(work())
    await settled()
    waits.cancel()
    await clock.advance(4.0)
    with pytest.raises(asyncio.CancelledError):
        await waits
    with pytest.raises(TimeoutError):
        await works


async def test_without_a_limit_the_time_is_taken(clock: LoopClock) -> None:
    async def work() -> float:
        async with Deadline(None) as deadline:
            with off_the_clock():
                await asyncio.sleep(7.0)
            await asyncio.sleep(2.0)
        return deadline.elapsed_s

    task = asyncio.ensure_future(work())
    await settled()
    await clock.advance(7.0)
    await clock.advance(2.0)
    await clock.advance(50.0)
    assert await task == pytest.approx(2.0)
