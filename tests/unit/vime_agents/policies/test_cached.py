"""A policy whose answers are kept: which request finds which answer, against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.vime_agents.loop_clock import LoopClock
from vime_agents import messages as msg
from vime_agents.deadlines import Deadline
from vime_agents.errors import EngineError, EngineRejected
from vime_agents.messages import Message
from vime_agents.policies import cached
from vime_agents.policies.admission import Admission
from vime_agents.policies.cached import CachedPolicy, with_cache
from vime_agents.policies.metered import Meter, MeteredPolicy
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policies.pool import PolicyPool
from vime_agents.policies.response_cache import ResponseCache
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Conversation, Generation, Sampling

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SAMPLING = Sampling(temperature=0.5, seed=3)


class Numbered:
    """A server that gives no answer twice; `plays` are statuses and finish reasons of the next ones."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.plays: list[tuple[int, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        await request.json()
        self.num_requests += 1
        status, finish_reason = self.plays.pop(0) if self.plays else (200, "stop")
        choice = {"message": {"content": f"answer {self.num_requests}"}, "finish_reason": finish_reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        return web.Response(status=status, text=json.dumps({"choices": [choice], "usage": usage}))


@pytest.fixture
async def server() -> AsyncIterator[tuple[Numbered, str]]:
    numbered, app = Numbered(), web.Application()
    app.router.add_post("/{path:.*}", numbered.handle)
    running = TestServer(app)
    await running.start_server()
    yield numbered, str(running.make_url("/v1"))
    await running.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.sqlite"


@pytest.fixture
def cache(path: Path) -> Iterator[ResponseCache]:
    with ResponseCache(path) as opened:
        yield opened


def chat(url: str, model: str = "m") -> OpenAIChatPolicy:
    return OpenAIChatPolicy(url, model, max_retries=0)


def talk(*messages: Message, episode: str = "eval-0-0", attempt: int = 0, **more: Any) -> Conversation:
    told = {"agent": "agent", "episode_id": f"{episode}-a{attempt}", "of_episode": episode, **more}
    conversation = Conversation(**told)
    conversation.observe(messages or [msg.user("2 + 2 = ?")])
    return conversation


async def ask(policy: CachedPolicy, conversation: Conversation, sampling: Sampling = SAMPLING) -> Generation:
    return await policy.act(conversation, sampling=sampling, timeout_s=30.0)


async def first_run(url: str, path: Path, *conversations: Conversation) -> list[Generation]:
    """Ask as a process that then ends."""
    with ResponseCache(path) as cache:
        policy = CachedPolicy(chat(url), cache)
        given = [await ask(policy, conversation) for conversation in conversations]
        await policy.aclose()
    return given


async def test_the_same_request_is_answered_without_the_server(server: Any, path: Path) -> None:
    numbered, url = server
    (told,) = await first_run(url, path, talk())
    assert not told.from_cache
    (again,) = await first_run(url, path, talk())
    assert again == replace(told, from_cache=True)
    assert again.usage.cached_prompt_tokens == 4
    assert numbered.num_requests == 1


async def test_a_slow_file_is_no_time_out_of_the_model(server: Any, cache: ResponseCache) -> None:
    _, url = server
    policy = CachedPolicy(chat(url), cache)

    async def slow(key: bytes) -> None:
        await clock.advance(60.0)

    cache.get = slow  # type: ignore[method-assign]
    async with Deadline(10.0) as deadline:
        clock = LoopClock()
        assert (await ask(policy, talk())).message["role"] == "assistant"
        assert deadline.elapsed_s < 10.0
    await policy.aclose()


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({}, {"temperature": 0.6}),
    "top_p": ({}, {"top_p": 0.5}),
    "max_tokens": ({}, {"max_tokens": 9}),
    "stop": ({}, {"stop": ("\n",)}),
    "seed": ({}, {"seed": 4}),
    "sample": ({"episode": "eval-0-1"}, {}),
    "task": ({"episode": "eval-1-0"}, {}),
    "agent": ({"agent": "other"}, {}),
    "turn": ({"turn": 1}, {}),
    "tools": ({"tools": [TOOL]}, {}),
}


@pytest.mark.parametrize("changed", OTHERS)
async def test_whatever_decides_the_answer_makes_another_request(
    server: Any, path: Path, changed: str
) -> None:
    numbered, url = server
    await first_run(url, path, talk())
    of_talk, of_sampling = OTHERS[changed]
    with ResponseCache(path) as cache:
        policy = CachedPolicy(chat(url), cache)
        told = await ask(policy, talk(**of_talk), replace(SAMPLING, **of_sampling))
        await policy.aclose()
    assert (told.message["content"], told.from_cache) == ("answer 2", False)
    assert numbered.num_requests == 2


@pytest.mark.parametrize(
    "messages",
    [
        [msg.user("2 + 3 = ?")],
        [msg.system("2 + 2 = ?")],
        [msg.user("2 + 2 = ?"), msg.assistant("")],
        [{"content": "2 + 2 = ?", "role": "user", "name": "n"}],
    ],
)
async def test_another_prompt_is_another_request(server: Any, path: Path, messages: list[Message]) -> None:
    numbered, url = server
    await first_run(url, path, talk())
    await first_run(url, path, talk(*messages))
    assert numbered.num_requests == 2


async def test_the_order_of_a_tools_keys_counts_as_a_chat_template_writes_them(
    server: Any, path: Path
) -> None:
    numbered, url = server
    turned = {"type": "function", "function": dict(reversed(TOOL["function"].items()))}
    assert turned == TOOL
    await first_run(url, path, talk(tools=[TOOL]))
    await first_run(url, path, talk(tools=[turned]))
    assert numbered.num_requests == 2


async def test_another_server_or_model_is_asked_itself(server: Any, cache: ResponseCache) -> None:
    numbered, url = server
    for policy in (chat(url), chat(url, "n"), chat(f"{url}/other")):
        kept = CachedPolicy(policy, cache)
        await ask(kept, talk())
        await kept.aclose()
    assert numbered.num_requests == 3


async def test_a_fresh_attempt_asks_anew_and_both_are_found_in_their_order(server: Any, path: Path) -> None:
    numbered, url = server
    attempts = [talk(attempt=0), talk(attempt=1)]
    given = await first_run(url, path, *attempts)
    assert [g.message["content"] for g in given] == ["answer 1", "answer 2"]
    again = await first_run(url, path, *attempts)
    assert again == [replace(g, from_cache=True) for g in given]
    assert numbered.num_requests == 2


async def test_a_call_that_failed_is_not_kept_and_takes_no_place(server: Any, path: Path) -> None:
    numbered, url = server
    numbered.plays = [(500, "stop"), (400, "stop"), (200, "abort")]
    with ResponseCache(path) as cache:
        policy = CachedPolicy(chat(url), cache)
        with pytest.raises(EngineRejected if numbered.plays[0][0] == 400 else EngineError):
            await ask(policy, talk(attempt=0))
        with pytest.raises(EngineRejected):
            await ask(policy, talk(attempt=0))
        assert (await ask(policy, talk(attempt=1))).finish_reason == "abort"
        told = await ask(policy, talk(attempt=2))
        await policy.aclose()
    assert told.message["content"] == "answer 4"
    # The next run's first attempt needs no further one, and finds what the third one got at last.
    (again,) = await first_run(url, path, talk(attempt=0))
    assert again == replace(told, from_cache=True)


async def test_an_answer_that_was_cut_off_is_kept(server: Any, path: Path) -> None:
    numbered, url = server
    numbered.plays = [(200, "length")]
    await first_run(url, path, talk())
    (again,) = await first_run(url, path, talk())
    assert (again.finish_reason, again.from_cache) == ("length", True)


async def test_what_is_found_costs_nothing(server: Any, path: Path) -> None:
    _, url = server
    await first_run(url, path, talk())
    meter = Meter()
    with ResponseCache(path) as cache:
        policy = MeteredPolicy(CachedPolicy(chat(url), cache), meter)
        await policy.act(talk(), sampling=SAMPLING)
        assert (meter.spent.calls, meter.spent.total_tokens) == (0, 0)
        await policy.act(talk(episode="eval-1-0"), sampling=SAMPLING)
        await policy.aclose()
    assert (meter.spent.calls, meter.spent.total_tokens) == (1, 12)


async def test_calls_that_are_tried_again_are_counted_through_the_cache(
    server: Any, cache: ResponseCache
) -> None:
    numbered, url = server
    numbered.plays = [(503, "stop"), (200, "stop")]
    meter = Meter()
    policy = MeteredPolicy(
        CachedPolicy(OpenAIChatPolicy(url, "m", backoff_s=0.001, admission=Admission(4)), cache), meter
    )
    await policy.act(talk(), sampling=SAMPLING)
    await policy.aclose()
    assert (meter.spent.retries, meter.spent.most_calls_at_once) == ({"HTTP 503": 1}, 1)


async def test_a_broken_cache_costs_calls_alone(server: Any, cache: ResponseCache) -> None:
    _, url = server
    policy = CachedPolicy(chat(url), cache)
    cache._reads.close()
    cache._writes.close()
    assert (await ask(policy, talk())).message["content"] == "answer 1"
    assert (await ask(policy, talk(episode="eval-0-1"))).message["content"] == "answer 2"
    await policy.aclose()
    cache.close()
    assert cache.failures == 4  # two lookups and two stores


async def test_only_so_many_episodes_are_remembered(
    server: Any, cache: ResponseCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = server
    monkeypatch.setattr(cached, "_REMEMBERED", 2)
    policy = CachedPolicy(chat(url), cache)
    for number in range(5):
        await ask(policy, talk(episode=f"eval-{number}-0"))
    assert list(policy._asked) == ["eval-3-0", "eval-4-0"]
    await policy.aclose()


async def test_requests_at_once_do_not_mix_their_answers(server: Any, path: Path) -> None:
    _, url = server
    talks = [talk(episode=f"eval-{number}-0") for number in range(40)]

    async def run() -> list[Generation]:
        with ResponseCache(path) as cache:
            policy = CachedPolicy(chat(url), cache)
            given = await asyncio.gather(*(ask(policy, conversation) for conversation in talks))
            await policy.aclose()
        return given

    given, again = await run(), await run()
    assert len({g.message["content"] for g in given}) == 40
    assert again == [replace(g, from_cache=True) for g in given]


async def test_the_same_request_several_times_at_once_has_an_answer_for_each(server: Any, path: Path) -> None:
    numbered, url = server

    async def run() -> set[str]:
        with ResponseCache(path) as cache:
            policy, conversation = CachedPolicy(chat(url), cache), talk()
            given = await asyncio.gather(*(ask(policy, conversation) for _ in range(5)))
            await policy.aclose()
        return {g.message["content"] for g in given}

    first = await run()
    assert first == {f"answer {n}" for n in range(1, 6)}
    assert await run() == first
    assert numbered.num_requests == 5


async def test_a_call_that_was_given_up_leaves_its_place_to_the_next(server: Any, path: Path) -> None:
    numbered, url = server
    with ResponseCache(path) as cache:
        policy = CachedPolicy(chat(url), cache)
        call = asyncio.ensure_future(ask(policy, talk()))
        async with asyncio.timeout(30):
            while not numbered.num_requests:
                await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        told = await ask(policy, talk(attempt=1))
        await policy.aclose()
    (again,) = await first_run(url, path, talk())
    assert again == replace(told, from_cache=True)


def test_of_a_pool_those_behind_a_server_are_kept(cache: ResponseCache) -> None:
    script, server = ScriptedPolicy("gold"), chat("http://127.0.0.1:1/v1")
    server.name = "a name of its own"
    pool = with_cache(PolicyPool([script, server], seed="7"), cache)
    assert isinstance(pool, PolicyPool)
    assert pool.members[0] is script
    assert isinstance(pool.members[1], CachedPolicy)
    assert pool.members[1].policy is server
    assert (pool.seed, pool.name) == ("7", "scripted:gold|a name of its own")
    assert with_cache(script, cache) is script
