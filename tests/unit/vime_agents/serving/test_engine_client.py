"""The client against a server of ours that speaks vLLM's wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from vime_agents.errors import EngineError, EngineRejected
from vime_agents.policy import ContextLengthExceeded, Sampling
from vime_agents.serving.engine_client import EngineClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeEngine:
    """Answers `generate` as told; keeps every request."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Handler = self.two_tokens

    async def two_tokens(self, request: web.Request) -> web.StreamResponse:
        content = [{"token_id": 7, "logprob": -0.5}, {"token_id": 9, "logprob": -2.0}]
        spans = [{"version": "1", "start": 0, "end": 2}]
        choice = {"token_ids": [7, 9], "finish_reason": "length", "logprobs": {"content": content}}
        return web.json_response({"choices": [choice | {"weight_versions": spans}]})

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.calls.append((request.path_qs, body))
        self.headers.append(dict(request.headers))
        if request.path == "/inference/v1/generate":
            return await self.answer(request)
        if request.path == "/weight_info":
            return web.json_response({"weight_version": "default"})
        return web.json_response({})


@pytest.fixture
async def engine() -> AsyncIterator[tuple[FakeEngine, EngineClient]]:
    fake = FakeEngine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.serve)
    server = TestServer(app)
    await server.start_server()
    client = EngineClient(str(server.make_url("")), timeout_s=10.0)
    yield fake, client
    await client.aclose()
    await server.close()


def answers(status: int, body: object) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return answer


async def test_the_session_is_the_routing_key(engine):
    fake, client = engine
    answer = await client.generate([1, 2, 3], Sampling(max_tokens=2), session_id="episode-4")
    assert answer.sampled.token_ids == (7, 9)
    assert fake.headers[0]["X-Session-ID"] == "episode-4"
    assert fake.calls[0][1]["token_ids"] == [1, 2, 3]


async def test_every_request_has_an_id_of_its_own(engine):
    fake, client = engine
    await asyncio.gather(*(client.generate([1], Sampling()) for _ in range(20)))
    assert len({body["request_id"] for _, body in fake.calls}) == 20


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_a_failing_engine_is_worth_another_attempt(engine, status: int):
    fake, client = engine
    fake.answer = answers(status, {"error": {"message": "out of memory"}})
    with pytest.raises(EngineError, match=f"HTTP {status}: out of memory") as caught:
        await client.generate([1], Sampling())
    assert caught.value.retryable


async def test_a_refused_request_is_not_worth_another_attempt(engine):
    fake, client = engine
    fake.answer = answers(400, {"error": {"message": "temperature must be non-negative"}})
    with pytest.raises(EngineRejected, match="temperature must be non-negative") as caught:
        await client.generate([1], Sampling())
    assert not caught.value.retryable


async def test_a_prompt_beyond_the_context_is_told_apart(engine):
    fake, client = engine
    message = "This model's maximum context length is 256 tokens. However, you requested 0 output tokens."
    fake.answer = answers(400, {"error": {"message": message}})
    with pytest.raises(ContextLengthExceeded) as caught:
        await client.generate([1] * 300, Sampling())
    assert (caught.value.num_tokens, caught.value.limit) == (300, 256)


async def test_an_answer_that_is_not_json_is_an_engine_error(engine):
    fake, client = engine

    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    fake.answer = page
    with pytest.raises(EngineError, match="not JSON"):
        await client.generate([1], Sampling())


async def test_a_connection_cut_in_the_middle_is_an_engine_error(engine):
    fake, client = engine

    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    fake.answer = cut
    with pytest.raises(EngineError, match="ServerDisconnectedError"):
        await client.generate([1], Sampling())


async def test_no_listener_is_an_engine_error_and_not_healthy():
    client = EngineClient(f"http://127.0.0.1:{unused_port()}")
    with pytest.raises(EngineError, match="Cannot connect"):
        await client.generate([1], Sampling())
    assert not await client.health()
    await client.aclose()


async def test_a_timeout_aborts_the_request_at_the_engine(engine):
    fake, client = engine
    release = asyncio.Event()

    async def never(_: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({})

    fake.answer = never
    with pytest.raises(TimeoutError, match="no answer within"):
        await client.generate([1], Sampling(), timeout_s=0.05)
    await client.aclose()  # waits for the abort to be sent
    release.set()
    sent = fake.calls[0][1]["request_id"]
    assert [b["request_ids"] for p, b in fake.calls if p == "/inference/v1/abort_requests"] == [
        [sent, f"generate-tokens-{sent}"]
    ]


async def test_the_calls_of_a_weight_sync_are_vllms(engine):
    fake, client = engine
    await client.pause()
    await client.init_weight_transfer({"port": 1})
    await client.start_weight_update()
    await client.update_weights({"path": "p"})
    await client.finish_weight_update(4)
    await client.finish_weight_update(None)
    await client.set_weight_version(5)
    await client.resume()
    assert fake.calls == [
        ("/pause?mode=keep", {}),
        ("/init_weight_transfer_engine", {"init_info": {"port": 1}}),
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"path": "p"}}),
        ("/finish_weight_update", {"weight_version": "4"}),
        ("/finish_weight_update", {}),
        ("/update_weight_version", {"new_version": "5"}),
        ("/resume", {}),
    ]
    assert await client.weight_version() is None
    assert await client.health()


async def test_a_server_that_closes_after_an_error_does_not_lose_the_next_call():
    """vLLM closes the connection after a failed update; the `resume` that follows must arrive."""

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.path != "/update_weights":
            return web.json_response({})
        response = web.json_response({"error": "no"}, status=500)
        await response.prepare(request)
        await response.write_eof()
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    async with TestServer(app) as server:
        client = EngineClient(str(server.make_url("")))
        for _ in range(20):
            with pytest.raises(EngineError, match="HTTP 500"):
                await client.update_weights({})
            await client.resume()
        await client.aclose()
