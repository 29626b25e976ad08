"""The chat policy behind an admission, against a real HTTP server that has room for so many calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from email.utils import formatdate

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.vime_agents.loop_clock import LoopClock, settled
from vime_agents import messages as msg
from vime_agents.errors import EngineError, EngineRejected
from vime_agents.policies.admission import MAX_REFUSED_S, Admission, Admissions
from vime_agents.policies.metered import Meter, MeteredPolicy
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policy import Conversation, Generation, Policy, Sampling

ANSWER = {"choices": [{"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}]}


class Room:
    """A server that takes `room` calls at once and refuses the others; each takes until it is let go."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.inside = self.most = self.refused = self.came = 0
        self.refusal: tuple[int, dict[str, str]] = (429, {})
        """Status and headers."""
        self.work_s = 0.0
        self.held: asyncio.Event | None = None
        """What calls wait for; None: for `work_s`."""
        self._arrivals = asyncio.Condition()
        self.url = ""

    async def came_to(self, num: int) -> None:
        """So many calls arrived in all, refused ones too."""
        async with self._arrivals:
            await self._arrivals.wait_for(lambda: self.came >= num)

    async def handle(self, request: web.Request) -> web.Response:
        await request.read()
        self.inside += 1
        try:
            self.most = max(self.most, self.inside)
            async with self._arrivals:
                self.came += 1
                self._arrivals.notify_all()
            if self.inside > self.room:
                self.refused += 1
                status, headers = self.refusal
                return web.Response(status=status, text="busy", headers=headers)
            if self.held is None:
                await asyncio.sleep(self.work_s)
            else:
                await self.held.wait()
            return web.json_response(ANSWER)
        finally:
            self.inside -= 1


@pytest.fixture
async def server() -> AsyncIterator[Room]:
    room = Room()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", room.handle)
    running = TestServer(app)
    await running.start_server()
    room.url = str(running.make_url("/v1"))
    yield room
    if room.held is not None:
        room.held.set()
    await running.close()


def policy_of(server: Room, admission: Admission | None, **options: float) -> OpenAIChatPolicy:
    return OpenAIChatPolicy(server.url, "m", backoff_s=0.001, admission=admission, **options)  # type: ignore[arg-type]


async def act(policy: Policy, timeout_s: float | None = None) -> Generation:
    talk = Conversation(agent="agent", episode_id="e")
    talk.observe([msg.user("2 + 2 = ?")])
    return await policy.act(talk, sampling=Sampling(), timeout_s=timeout_s)


async def many(policies: list[OpenAIChatPolicy], num: int, concurrency: int = 64) -> None:
    """`num` calls of each policy, so many at once in all; all are answered."""
    left = [policy for policy in policies for _ in range(num)]

    async def work() -> None:
        while left:
            assert (await act(left.pop())).message["content"] == "4"

    try:
        await asyncio.gather(*(work() for _ in range(concurrency)))
    finally:
        for policy in policies:
            await policy.aclose()


async def test_the_window_comes_to_what_the_server_has_room_for_with_few_refusals(server: Room) -> None:
    server.room, server.work_s = 10, 0.002
    await many([policy_of(server, None, max_retries=10_000)], 600)
    refused_before, server.refused, server.most = server.refused, 0, 0
    admission = Admission(64)
    policy = policy_of(server, admission)
    await many([policy], 600)
    assert server.refused * 5 < refused_before
    # It oscillates between 70 % of what was refused, one or two above the room, and that.
    assert 7 <= admission.window <= 12
    assert server.refused < 40
    assert server.most <= admission.most_at_once < 40
    assert policy.retries == {"HTTP 429": server.refused}
    assert admission.in_flight == 0


async def test_no_more_than_the_ceiling_arrive_at_once(server: Room) -> None:
    admission = Admission(5)
    server.work_s = 0.001
    await many([policy_of(server, admission)], 60)
    assert server.most == admission.most_at_once == 5


async def test_policies_of_one_server_share_its_places(server: Room) -> None:
    server.work_s = 0.001
    admissions = Admissions(6)
    both = [policy_of(server, admissions.of(server.url)) for _ in range(2)]
    await many(both, 40)
    assert server.most == 6


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("date", [False, True])
async def test_retry_after_holds_back_all_calls(server: Room, status: int, date: bool) -> None:
    clock = LoopClock()
    server.room, server.held = 2, asyncio.Event()
    # A date is told from the server's clock, which is years behind ours here.
    dates = {"Date": formatdate(1e9, usegmt=True), "Retry-After": formatdate(1e9 + 20, usegmt=True)}
    server.refusal = (status, dates if date else {"Retry-After": "20"})
    admission = Admission(64, start=3)
    policy = policy_of(server, admission)
    calls = [asyncio.ensure_future(act(policy, timeout_s=5.0)) for _ in range(6)]
    await server.came_to(3)
    while not policy.retries:  # until the refusal has arrived
        await asyncio.sleep(0)
    server.room, server.work_s = 1000, 0.0
    server.held.set()
    done, _ = await asyncio.wait(calls[:3], return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:  # those that the server had taken
        more, _ = await asyncio.wait([c for c in calls if c not in done], return_when=asyncio.FIRST_COMPLETED)
        done |= more
    await clock.advance(19.0)
    assert (server.came, len(done), admission.in_flight) == (3, 2, 0)
    await clock.advance(1.5)
    await asyncio.gather(*calls)  # though their limit was 5 seconds
    assert server.came == 7
    assert policy.retries == {f"HTTP {status}": 1}
    await policy.aclose()


async def test_retry_after_of_any_answer_holds_back(server: Room) -> None:
    clock = LoopClock()
    server.room, server.refusal = 0, (403, {"Retry-After": "20"})
    policy = policy_of(server, Admission(4))
    with pytest.raises(EngineRejected):
        await act(policy)
    server.room = 4
    call = asyncio.ensure_future(act(policy))
    await clock.advance(19.0)
    assert server.came == 1
    await clock.advance(2.0)
    await call
    await policy.aclose()


async def test_waiting_for_a_place_is_no_time_out_but_the_server_is(server: Room) -> None:
    clock = LoopClock()
    server.held = asyncio.Event()
    policy = policy_of(server, Admission(1))
    first = asyncio.ensure_future(act(policy))
    second = asyncio.ensure_future(act(policy, timeout_s=5.0))
    third = asyncio.ensure_future(act(policy, timeout_s=5.0))
    await server.came_to(1)
    await clock.advance(1000.0)
    assert not second.done()
    server.held.set()
    await first
    await second
    server.held.clear()
    third.cancel()
    fourth = asyncio.ensure_future(act(policy, timeout_s=5.0))
    before = server.came
    await server.came_to(before + 1)
    await clock.advance(6.0)
    with pytest.raises(TimeoutError):
        await fourth
    server.held.set()
    await act(policy)  # whose place the fourth gave back
    await policy.aclose()


async def test_a_cancelled_call_frees_its_place(server: Room) -> None:
    server.held = asyncio.Event()
    policy = policy_of(server, Admission(1))
    first = asyncio.ensure_future(act(policy))
    second = asyncio.ensure_future(act(policy))
    await server.came_to(1)
    first.cancel()
    await server.came_to(2)
    server.held.set()
    assert (await second).message["content"] == "4"
    await policy.aclose()


async def test_refusals_use_up_no_tries_but_end_when_the_server_answers_nobody(server: Room) -> None:
    clock = LoopClock()
    server.room, server.refusal = 0, (503, {"Retry-After": "50"})
    policy = policy_of(server, Admission(4), max_retries=0)
    call = asyncio.ensure_future(act(policy))
    tries = int(MAX_REFUSED_S // 50) + 1
    for number in range(1, tries + 1):
        await server.came_to(number)
        while server.inside or (policy.retries.total() < number and not call.done()):
            await asyncio.sleep(0)
        await clock.advance(50.001)
    with pytest.raises(EngineError, match=rf"HTTP 503: busy, after {tries} tries"):
        await call
    await policy.aclose()


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}])
async def test_the_wait_between_tries_is_no_time_out_and_never_none(
    server: Room, headers: dict[str, str]
) -> None:
    clock = LoopClock()
    server.room, server.refusal = 0, (503, headers)
    policy = policy_of(server, Admission(4), max_retries=0)
    policy.backoff_s = 10.0
    call = asyncio.ensure_future(act(policy, timeout_s=1.0))
    await server.came_to(1)
    while server.inside or not policy.retries:
        await asyncio.sleep(0)
    server.room = 4
    await settled()
    assert server.came == 1
    await clock.advance(16.0)  # 10 s, up to half more
    assert (await call).message["content"] == "4"
    await policy.aclose()


async def test_a_request_that_is_rejected_found_room(server: Room) -> None:
    server.room, server.refusal = 0, (403, {})
    policy = policy_of(server, admission := Admission(4, start=1))
    with pytest.raises(EngineRejected):
        await act(policy)
    assert admission.window == 2
    await policy.aclose()


async def test_other_failures_still_use_up_tries(server: Room) -> None:
    server.room, server.refusal = 0, (500, {})
    policy = policy_of(server, Admission(4), max_retries=2)
    with pytest.raises(EngineError, match="HTTP 500: busy, after 3 tries"):
        await act(policy)
    assert server.came == 3
    assert policy.retries == {"HTTP 500": 2}
    await policy.aclose()


async def test_a_meter_counts_the_retries_of_its_own_calls_also_of_those_that_failed(server: Room) -> None:
    policy = policy_of(server, Admission(4), max_retries=2)
    meter, later = Meter(), Meter()
    metered = MeteredPolicy(policy, meter)
    server.room, server.refusal = 0, (500, {})
    with pytest.raises(EngineError):
        await act(metered)
    with pytest.raises(EngineError):
        await act(metered)
    with pytest.raises(EngineError):
        await act(MeteredPolicy(policy, later))
    assert (meter.spent.calls, meter.spent.retries, meter.spent.most_calls_at_once) == (0, {"HTTP 500": 4}, 1)
    assert later.spent.retries == {"HTTP 500": 2}
    await policy.aclose()
