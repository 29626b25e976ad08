"""Token ids in, token ids out, with the log-probs of the distribution that was sampled from."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.integration.serving.engine_metrics import running_requests
from vime_agents.errors import EngineRejected
from vime_agents.policy import ContextLengthExceeded, Sampling
from vime_agents.serving.engine_client import EngineClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PROMPT = [1, 87, 75, 69, 82, 2, 203, 1]


def largest_difference(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


async def test_sampled_log_probs_equal_those_of_transformers(
    client: EngineClient, tiny_qwen3: Path, hf_logprobs
):
    answer = await client.generate(PROMPT, Sampling(max_tokens=48, seed=5))
    ids = list(answer.sampled.token_ids)
    reference = hf_logprobs(tiny_qwen3, PROMPT + ids)[len(PROMPT) :]
    assert 1 <= len(ids) <= 48
    assert largest_difference(list(answer.sampled.logprobs), reference) < 1e-4
    assert answer.sampled.versions == ((0, 0, len(ids)),)


async def test_seeded_requests_that_fill_more_than_one_engine_step_are_all_answered(client: EngineClient):
    """A step of the engine takes 2048 tokens: a prompt that it split would kill it, were it seeded."""
    prompts = [[5 + (n * k) % 400 for k in range(1, 301)] for n in range(1, 25)]
    sampling = [Sampling(max_tokens=4, seed=n) for n in range(len(prompts))]
    together = await asyncio.gather(*(client.generate(p, s) for p, s in zip(prompts, sampling, strict=True)))
    assert await client.health()
    alone = await client.generate(prompts[-1], sampling[-1])
    assert alone.sampled.token_ids == together[-1].sampled.token_ids


async def test_log_probs_at_a_temperature_are_of_the_scaled_distribution(
    client: EngineClient, tiny_qwen3: Path, hf_logprobs
):
    answer = await client.generate(PROMPT, Sampling(max_tokens=32, temperature=0.7, seed=7))
    ids = PROMPT + list(answer.sampled.token_ids)
    sampled = list(answer.sampled.logprobs)
    assert largest_difference(sampled, hf_logprobs(tiny_qwen3, ids, 0.7)[len(PROMPT) :]) < 1e-4
    assert largest_difference(sampled, hf_logprobs(tiny_qwen3, ids)[len(PROMPT) :]) > 0.05


async def test_prompt_log_probs_equal_those_of_transformers(
    client: EngineClient, tiny_qwen3: Path, hf_logprobs
):
    ids = list(range(5, 405, 5))
    engine = await client.prompt_logprobs(ids)
    assert largest_difference(engine[1:], hf_logprobs(tiny_qwen3, ids)[1:]) < 1e-4


async def test_a_later_turn_reads_the_sampled_ids_verbatim(
    client: EngineClient, tiny_qwen3: Path, hf_logprobs
):
    first = await client.generate(PROMPT, Sampling(max_tokens=12, seed=1), session_id="episode")
    prompt = [*PROMPT, *first.sampled.token_ids, 203, 1]
    second = await client.generate(prompt, Sampling(max_tokens=12, seed=2), session_id="episode")
    ids = prompt + list(second.sampled.token_ids)
    assert (
        largest_difference(list(second.sampled.logprobs), hf_logprobs(tiny_qwen3, ids)[len(prompt) :]) < 1e-4
    )


async def test_a_stop_string_ends_the_turn_and_keeps_its_tokens(client: EngineClient, tiny_qwen3: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3)
    free = (await client.generate(PROMPT, Sampling(max_tokens=40, seed=11))).sampled.token_ids
    # A printable token that has not appeared before, as the stop string.
    at = next(i for i in range(3, len(free)) if (w := tokenizer.decode([free[i]])).isalnum()
              and w not in tokenizer.decode(list(free[:i])))  # fmt: skip
    word = tokenizer.decode([free[at]])
    stopped = await client.generate(PROMPT, Sampling(max_tokens=40, seed=11, stop=(word,)))
    assert stopped.sampled.token_ids == free[: at + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", word)


async def test_a_prompt_that_fills_the_context_is_told_apart_from_other_refusals(client: EngineClient):
    with pytest.raises(ContextLengthExceeded) as caught:
        await client.generate([5] * 1024, Sampling(max_tokens=1))
    assert (caught.value.num_tokens, caught.value.limit) == (1024, 1024)
    with pytest.raises(EngineRejected, match="out of vocabulary"):
        await client.generate([100_000], Sampling(max_tokens=1))


async def test_sampling_ends_at_the_context_limit_with_length(client: EngineClient):
    answer = await client.generate([5] * 1020, Sampling(max_tokens=64, temperature=0.0))
    assert (len(answer.sampled.token_ids), answer.finish_reason) == (4, "length")


async def test_after_a_timeout_the_engine_stops_sampling(client: EngineClient):
    with pytest.raises(TimeoutError, match="no answer within"):
        await client.generate(PROMPT, Sampling(max_tokens=1000, temperature=0.0), timeout_s=0.2)
    for _ in range(100):
        if await running_requests(client.url) == 0:
            break
        await asyncio.sleep(0.05)
    assert await running_requests(client.url) == 0
    assert (await client.generate(PROMPT, Sampling(max_tokens=1))).sampled.token_ids
