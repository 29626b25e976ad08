"""The chat policy against a real vLLM server."""

from __future__ import annotations

import pytest

from vime_agents import messages as msg
from vime_agents.errors import EngineRejected
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policy import ContextLengthExceeded, Conversation, Sampling
from vime_agents.serving.vllm_server import VllmServer

pytestmark = pytest.mark.integration


def conversation(text: str) -> Conversation:
    talk = Conversation(agent="agent", episode_id="e")
    talk.observe([msg.user(text)])
    return talk


async def test_vllm_answers_truncates_and_refuses_in_ways_that_we_understand(tiny_server: VllmServer):
    policy = OpenAIChatPolicy(f"{tiny_server.url}/v1", tiny_server.config.served_model_name)
    sampling = Sampling(temperature=1.0, max_tokens=5, seed=1)
    try:
        first = await policy.act(conversation("2 + 2 = ?"), sampling=sampling, timeout_s=120)
        again = await policy.act(conversation("2 + 2 = ?"), sampling=sampling, timeout_s=120)
        assert first.usage.sampled_tokens is not None
        assert 1 <= first.usage.sampled_tokens <= 5
        assert first.message["role"] == "assistant"
        assert first.message == again.message
        limit = tiny_server.config.max_model_len
        with pytest.raises(ContextLengthExceeded) as full:
            await policy.act(conversation("word " * 20_000), sampling=sampling, timeout_s=120)
        assert full.value.limit == limit
        policy.model = "no-such-model"
        with pytest.raises(EngineRejected, match="no-such-model"):
            await policy.act(conversation("x"), sampling=sampling, timeout_s=120)
    finally:
        await policy.aclose()
