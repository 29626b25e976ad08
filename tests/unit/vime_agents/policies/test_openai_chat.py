"""The chat policy against a real HTTP server that answers as it is told."""

import asyncio
import json
import random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from vime_agents import messages as msg
from vime_agents.errors import EngineError, EngineRejected
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policy import ContextLengthExceeded, Conversation, Policy, Sampling

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def answer(content="4", finish_reason="stop", **message):
    return {
        "choices": [
            {
                "message": {"role": "assistant", "content": content} | message,
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3},
    }


class Script:
    """A server that plays (status, body, headers) in order, the last one for ever."""

    def __init__(self):
        self.answers = []
        self.requests = []

    async def handle(self, request):
        self.requests.append((await request.json(), dict(request.headers)))
        status, body, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if body is None:
            await asyncio.sleep(30)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, headers=headers)

    def plays(self, *answers):
        self.answers = [(*a, {})[:3] for a in answers]


@pytest.fixture
async def script():
    return Script()


@pytest.fixture
async def policy(script):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", script.handle)
    server = TestServer(app)
    await server.start_server()
    policy = OpenAIChatPolicy(str(server.make_url("/v1")), "m", "secret", backoff_s=0.001)
    yield policy
    await policy.aclose()
    await server.close()


def conversation(*messages, tools=()):
    talk = Conversation(agent="agent", episode_id="e", tools=tools)
    talk.observe(messages or [msg.user("2 + 2 = ?")])
    return talk


async def act(policy, talk=None, timeout_s=5.0, **sampling):
    return await policy.act(talk or conversation(), sampling=Sampling(**sampling), timeout_s=timeout_s)


async def test_a_call_sends_everything_and_reads_the_reply(policy, script):
    script.plays((200, answer()))
    talk = conversation(msg.system("s"), msg.user("u"), tools=[TOOL])
    generation = await act(
        policy, talk, temperature=0.5, top_p=0.9, top_k=7, max_tokens=12, stop=("\n",), seed=3
    )
    assert generation.message == {"role": "assistant", "content": "4"}
    assert generation.finish_reason == "stop"
    assert (generation.usage.prompt_tokens, generation.usage.sampled_tokens) == (11, 3)
    ((body, headers),) = script.requests
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "max_tokens": 12,
        "stop": ["\n"],
        "seed": 3,
        "tools": [TOOL],
    }
    assert headers["Authorization"] == "Bearer secret"
    assert len(talk.messages) == 2


async def test_what_the_servers_prefix_cache_had_is_counted(policy, script):
    plain, cached = answer(), answer()
    cached["usage"]["prompt_tokens_details"] = {"cached_tokens": 8}
    script.plays((200, cached), (200, plain))
    assert (await act(policy)).usage.cached_prompt_tokens == 8
    assert (await act(policy)).usage.cached_prompt_tokens is None


async def test_what_openai_does_not_know_is_left_out_where_it_has_no_effect(policy, script):
    script.plays((200, answer()))
    await act(policy)
    assert set(script.requests[0][0]) == {"model", "messages", "temperature", "top_p", "max_tokens"}


async def test_429_is_tried_again_and_then_answered(policy, script):
    script.plays((429, "slow down"), (503, "busy"), (200, answer("ok")))
    assert (await act(policy)).message["content"] == "ok"
    assert len(script.requests) == 3


async def test_a_retry_leaves_the_shared_generator_of_random_numbers_alone(policy, script):
    script.plays((503, "busy"), (200, answer("ok")))
    before = random.getstate()
    await act(policy)
    assert random.getstate() == before


async def test_the_servers_retry_after_wins_over_our_backoff(policy, script):
    policy.backoff_s = 1000.0
    script.plays((429, "slow down", {"Retry-After": "0"}), (200, answer("ok")))
    assert (await act(policy)).message["content"] == "ok"


async def test_an_answer_that_is_no_json_is_tried_again(policy, script):
    script.plays((200, '{"choices": [{"mess'), (200, answer("ok")))
    assert (await act(policy)).message["content"] == "ok"


async def test_retries_end_in_an_engine_error_that_says_what_the_server_said(policy, script):
    script.plays((500, "out of memory"))
    with pytest.raises(EngineError, match=r"/v1: HTTP 500: out of memory, after 5 tries") as caught:
        await act(policy)
    assert caught.value.retryable
    assert len(script.requests) == 5


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refused_request_is_not_tried_again(policy, script, status):
    script.plays((status, "no such model"))
    with pytest.raises(EngineRejected, match=rf"HTTP {status} for model 'm': no such model") as caught:
        await act(policy)
    assert not caught.value.retryable
    assert "secret" not in str(caught.value)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens",
            (3000, 2048),
        ),
        ('{"error": {"code": "context_length_exceeded"}}', (-1, -1)),
    ],
)
async def test_a_full_context_is_a_truncation_not_an_error(policy, script, text, expected):
    script.plays((400, text))
    with pytest.raises(ContextLengthExceeded) as caught:
        await act(policy)
    assert (caught.value.num_tokens, caught.value.limit) == expected


async def test_tool_calls_are_read_also_where_a_server_bends_the_api(policy, script):
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": None, "function": {"name": "add", "arguments": {"a": 2}}},
        {"id": "c3", "type": "function", "function": {"name": "add", "arguments": '{"a": '}},
    ]
    script.plays((200, answer(None, "tool_calls", tool_calls=calls)))
    message = (await act(policy)).message
    assert message["content"] == ""
    assert [(c["id"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        ("c1", '{"a": 1}'),
        ("call-1", '{"a": 2}'),
        ("c3", '{"a": '),
    ]
    talk = conversation()
    talk.replied(message)
    talk.observe([msg.tool_result("3", message["tool_calls"][0])])
    script.plays((200, answer()))
    await act(policy, talk)
    sent = script.requests[-1][0]["messages"]
    assert sent[1]["tool_calls"] == message["tool_calls"]
    assert sent[2] == {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{"message": None}]},
        [1],
        answer([{"type": "text", "text": "x"}]),
        answer(tool_calls=[{"id": "c", "function": {"name": None, "arguments": "{}"}}]),
        answer(tool_calls=[{"id": "c"}]),
    ],
)
async def test_another_shape_is_an_engine_error_that_shows_it(policy, script, body):
    script.plays((200, body))
    with pytest.raises(EngineError, match="not an answer of the chat API"):
        await act(policy)


async def test_a_server_that_hangs_runs_into_the_callers_time_limit(policy, script):
    script.plays((200, None))
    with pytest.raises(TimeoutError):
        await act(policy, timeout_s=0.05)


async def test_the_time_limit_covers_the_retries_too(policy, script):
    policy.max_retries, policy.backoff_s = 1000, 0.01
    script.plays((500, "x"))
    with pytest.raises(TimeoutError):
        await act(policy, timeout_s=0.05)


async def test_nobody_listening_is_an_engine_error():
    policy = OpenAIChatPolicy(f"http://127.0.0.1:{unused_port()}/v1", "m", max_retries=0)
    with pytest.raises(EngineError, match=r"no connection: Cannot connect to host 127.0.0.1:\d+"):
        await act(policy)
    await policy.aclose()
    await policy.aclose()


async def test_without_a_key_no_key_is_sent(policy, script):
    script.plays((200, answer()))
    bare = OpenAIChatPolicy(policy.base_url + "/", "m")
    await act(bare)
    await bare.aclose()
    assert "Authorization" not in script.requests[0][1]


def test_it_is_a_policy_without_exact_tokens():
    policy = OpenAIChatPolicy("http://h/v1", "m")
    assert isinstance(policy, Policy)
    assert policy.exact_tokens is False
