"""Places for calls to one server: how many there are, who gets them, and who gives them back."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.vime_agents.loop_clock import LoopClock, settled
from vime_agents.errors import EngineError
from vime_agents.policies.admission import MAX_PAUSE_S, MAX_REFUSED_S, Admission, Admissions, AdmittedCall


class Calls:
    """Many calls that wait at `admission`; those that have a place keep it until told how it went."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.entered: list[int] = []
        """In the order in which they were let in."""
        self.calls: dict[int, AdmittedCall] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, asyncio.Future[str]] = {}

    @property
    def inside(self) -> list[int]:
        return list(self._ends)

    async def arrive(self, *numbers: int) -> None:
        for number in numbers:
            call = self.calls.setdefault(number, self.admission.call())
            self.tasks[number] = asyncio.ensure_future(self._one(number, call))
        await settled()

    async def end(self, how: str, *numbers: int) -> None:
        """answered, refused, or lost."""
        for number in numbers:
            self._ends[number].set_result(how)
        await settled()

    async def all_inside(self, how: str) -> None:
        await self.end(how, *self.inside)

    async def _one(self, number: int, call: AdmittedCall) -> None:
        async with call.place() as place:
            self.entered.append(number)
            assert self.admission.in_flight <= self.admission.window
            self._ends[number] = asyncio.get_running_loop().create_future()
            try:
                how = await self._ends[number]
            finally:
                del self._ends[number]
            if how == "answered":
                place.answered()
            elif how == "refused":
                place.refused()


@pytest.fixture
async def clock() -> LoopClock:
    return LoopClock()


async def calls_at(ceiling: int, num: int, start: int = 8) -> Calls:
    calls = Calls(Admission(ceiling, start=start))
    await calls.arrive(*range(num))
    return calls


async def test_the_window_doubles_with_each_round_of_answers_up_to_the_ceiling() -> None:
    calls = await calls_at(40, 500)
    sizes: list[int] = []
    for _ in range(5):
        sizes.append(len(calls.inside))
        await calls.all_inside("answered")
    assert sizes == [8, 16, 32, 40, 40]
    assert calls.admission.most_at_once == 40


async def test_a_ceiling_below_the_start_holds_from_the_start() -> None:
    calls = await calls_at(3, 20)
    for _ in range(3):
        assert len(calls.inside) == 3
        await calls.all_inside("answered")


async def test_calls_that_were_under_way_together_cut_once() -> None:
    calls = await calls_at(64, 500)
    await calls.all_inside("answered")
    assert len(calls.inside) == 16
    await calls.all_inside("refused")
    assert calls.admission.window == len(calls.inside) == 11  # 16 * 0.7, and not 16 * 0.7 ** 16
    await calls.all_inside("refused")  # these were sent after the cut
    assert calls.admission.window == len(calls.inside) == 7


async def test_calls_from_before_the_cut_do_not_cut_when_they_are_refused_later() -> None:
    calls = await calls_at(64, 500, start=10)
    await calls.end("refused", 0)
    assert calls.admission.window == 7
    await calls.end("refused", 1, 2, 3)  # 6 are left, so that one more is let in
    assert (calls.admission.window, calls.inside) == (7, [4, 5, 6, 7, 8, 9, 10])
    await calls.end("refused", 10)
    assert calls.admission.window == 4


async def test_from_the_first_refusal_on_it_grows_by_one_a_round() -> None:
    calls = await calls_at(64, 500, start=32)
    await calls.end("answered", 0)
    await calls.all_inside("refused")
    sizes: list[int] = []
    for _ in range(4):
        sizes.append(len(calls.inside))
        await calls.all_inside("answered")
    assert sizes == [23, 24, 25, 26]  # 33 * 0.7 rounded down


async def test_a_server_that_bears_one_call_is_seldom_asked_for_two() -> None:
    calls = await calls_at(64, 500, start=2)
    answered = refused = 0
    while answered < 200:
        if len(calls.inside) > 1:
            refused += 1
            await calls.end("refused", calls.inside[-1])
        answered += 1
        await calls.end("answered", calls.inside[0])
    assert refused <= 200 / 16 + 1


async def test_a_call_that_is_refused_for_what_it_is_does_not_hold_the_others_back() -> None:
    calls = await calls_at(64, 1500, start=64)
    windows: list[int] = []
    for _ in range(20):
        if 0 in calls.inside:
            await calls.end("refused", 0)
            await calls.arrive(0)  # its next try
        await calls.end("answered", *(number for number in calls.inside if number))
        windows.append(calls.admission.window)
    assert windows[0] == min(windows) == 45  # once 30 % less, and one round
    assert windows[-1] > 44 + 12  # and back, one a round


async def test_the_floor_is_one_and_after_an_outage_it_is_soon_where_it_was() -> None:
    calls = await calls_at(64, 500, start=32)
    await calls.end("answered", 0)
    for _ in range(12):
        await calls.all_inside("refused")
    assert calls.admission.window == len(calls.inside) == 1
    sizes: list[int] = []
    for _ in range(7):
        await calls.all_inside("answered")
        sizes.append(len(calls.inside))
    assert sizes == [2, 4, 8, 16, 23, 24, 25]  # 33 * 0.7 was the first cut; from there one by one


async def test_it_does_not_grow_while_nobody_waits_for_more() -> None:
    calls = await calls_at(64, 4)
    for batch in range(1, 20):
        await calls.all_inside("answered")
        await calls.arrive(*range(batch * 4, batch * 4 + 4))
    assert (calls.admission.window, calls.admission.most_at_once) == (8, 4)


async def test_what_says_nothing_about_load_changes_nothing() -> None:
    calls = await calls_at(64, 100)
    await calls.all_inside("lost")
    assert calls.admission.window == len(calls.inside) == 8


async def test_who_came_first_is_first_also_after_a_refusal() -> None:
    calls = await calls_at(2, 6)
    assert calls.entered == [0, 1]
    await calls.end("refused", 1)
    await calls.arrive(1)  # its next try, behind four others
    await calls.end("answered", 0)
    assert calls.entered == [0, 1, 1]
    while calls.inside:
        await calls.end("answered", calls.inside[0])
    assert calls.entered == [0, 1, 1, 2, 3, 4, 5]


async def test_who_is_cancelled_gives_its_place_to_the_next() -> None:
    calls = await calls_at(2, 6)
    calls.tasks[0].cancel()  # at the server
    calls.tasks[2].cancel()  # in the queue, and first there
    await settled()
    assert (calls.inside, calls.admission.in_flight) == ([1, 3], 2)
    # Let in and cancelled before it could run.
    calls.tasks[1].cancel()
    calls.tasks[3].cancel()
    calls.tasks[4].cancel()
    await settled()
    assert (calls.inside, calls.admission.in_flight) == ([5], 1)
    await calls.all_inside("answered")
    assert calls.admission.in_flight == 0


async def test_the_queue_keeps_its_order_when_somebody_leaves_it(clock: LoopClock) -> None:
    calls = await calls_at(8, 8)
    calls.admission.pause(10.0)
    await calls.all_inside("refused")
    await calls.arrive(*range(7, -1, -1))
    calls.tasks[0].cancel()
    await clock.advance(11.0)
    assert calls.entered[8:] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancel_at_any_moment_of_being_let_in_loses_no_place(turns: int) -> None:
    calls = await calls_at(1, 3)
    calls._ends[0].set_result("answered")
    for _ in range(turns):
        await asyncio.sleep(0)
    calls.tasks[1].cancel()
    await settled()
    assert (calls.inside, calls.admission.in_flight) == ([2], 1)


async def test_a_pause_holds_everybody_back_until_it_is_over(clock: LoopClock) -> None:
    calls = await calls_at(64, 20)
    calls.admission.pause(10.0)
    await calls.all_inside("answered")
    calls.admission.pause(5.0)  # the longer one counts
    await calls.arrive(20)
    await clock.advance(9.0)
    assert calls.inside == []
    await clock.advance(1.5)
    assert calls.inside == list(range(8, 20))[: calls.admission.window]
    assert len(calls.inside) >= 8


async def test_a_pause_is_no_longer_than_its_limit(clock: LoopClock) -> None:
    calls = await calls_at(1, 2)
    calls.admission.pause(1e9)
    await calls.all_inside("answered")
    await clock.advance(MAX_PAUSE_S - 1)
    assert calls.inside == []
    await clock.advance(2)
    assert calls.inside == [1]


async def test_a_pause_for_whoever_was_cancelled_leaves_nothing_behind(clock: LoopClock) -> None:
    calls = await calls_at(1, 2)
    calls.admission.pause(10.0)
    await calls.all_inside("answered")
    calls.tasks[1].cancel()
    await settled()
    assert calls.admission._timer is None
    await clock.advance(20.0)
    await calls.arrive(2)
    assert calls.inside == [2]


async def test_a_wait_for_a_place_has_a_bound(clock: LoopClock) -> None:
    calls = Calls(Admission(1, max_queued_s=100.0))
    await calls.arrive(0, 1)
    await clock.advance(99.0)
    assert not calls.tasks[1].done()
    await clock.advance(2.0)
    with pytest.raises(EngineError, match="no place for the call within 100 s") as caught:
        await calls.tasks[1]
    assert caught.value.retryable
    await calls.arrive(2)
    await calls.end("answered", 0)
    assert calls.inside == [2]


async def test_refusals_are_borne_for_a_time_while_the_server_answers_others(clock: LoopClock) -> None:
    calls = await calls_at(2, 2)
    await calls.end("refused", 0)
    assert calls.calls[0].patient
    await clock.advance(MAX_REFUSED_S - 1)
    await calls.end("answered", 1)
    assert calls.calls[0].patient
    await clock.advance(2)
    assert not calls.calls[0].patient
    await calls.arrive(2)
    await calls.end("refused", 2)
    assert calls.calls[2].patient


async def test_a_server_that_answers_nobody_for_long_is_waited_for_no_more(clock: LoopClock) -> None:
    calls = await calls_at(1, 1)
    await calls.end("refused", 0)
    await clock.advance(MAX_REFUSED_S + 1)
    await calls.arrive(1)
    await calls.end("refused", 1)
    assert not calls.calls[1].patient  # its own first refusal
    await calls.arrive(2)
    await calls.end("answered", 2)
    await calls.arrive(3)
    await calls.end("refused", 3)
    assert calls.calls[3].patient


def test_each_server_has_one_however_its_url_is_spelled() -> None:
    admissions = Admissions(5)
    one = admissions.of("http://Host:80/v1")
    assert admissions.of("http://host/v1/") is one
    others = [admissions.of(f"http://{rest}") for rest in ("host:81/v1", "host/v2", "other/v1")]
    assert len({id(a) for a in (one, *others, admissions.of("https://host/v1"))}) == 5
    assert one.ceiling == 5
