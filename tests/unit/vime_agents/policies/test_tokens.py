"""The token policy: the engine reads verbatim what it sampled, and the log holds exactly that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from vime_agents.errors import EngineError, ModelError, RecordError
from vime_agents.messages import Message, assistant, user
from vime_agents.policies.tokens import TokenPolicy
from vime_agents.policy import ContextLengthExceeded, Conversation, Sampling
from vime_agents.token_log import Piece, SampledTokens


@dataclass
class Answer:
    sampled: SampledTokens
    finish_reason: str = "stop"


class CountingEngine:
    """Samples 100, 101, ... and remembers what it read."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.prompts: list[list[int]] = []
        self.samplings: list[Sampling] = []
        self.sessions: list[str] = []

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, session_id: str, timeout_s: float | None
    ) -> Answer:
        self.prompts.append(list(token_ids))
        self.samplings.append(sampling)
        self.sessions.append(session_id)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        """Nothing to release."""


class LengthRenderer:
    """Each message is one token: its length. Replies are never rendered."""

    stop_token_ids = (2,)

    def __init__(self, *, extends: bool = True) -> None:
        self.extends = extends

    def initial(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Piece]:
        return [
            Piece(token_ids=(len(m["content"]),), source=m["role"])  # type: ignore[arg-type]
            for m in messages
        ]

    def extend(
        self, previous_ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> list[Piece] | None:
        return self.initial(new_messages, tools) if self.extends else None

    def written(self, messages: Sequence[Message], tools: Any) -> list[int]:
        raise NotImplementedError

    def parse(self, sampled_ids: Sequence[int]) -> Message:
        return assistant("x" * len(sampled_ids))


def sampled(*ids: int, version: int = 0) -> Answer:
    return Answer(
        SampledTokens(token_ids=ids, logprobs=(-0.5,) * len(ids), versions=((version, 0, len(ids)),))
    )


async def turn(policy: TokenPolicy, conversation: Conversation, text: str) -> None:
    conversation.observe([user(text)])
    generation = await policy.act(conversation, sampling=Sampling(max_tokens=8))
    conversation.replied(generation.message)


async def test_each_call_reads_the_earlier_ids_verbatim_and_the_new_messages() -> None:
    engine = CountingEngine(sampled(100, 2), sampled(101, 102, version=1))
    policy = TokenPolicy(engine, LengthRenderer(), max_context_tokens=50)
    conversation = Conversation(agent="agent", episode_id="e")
    await turn(policy, conversation, "abc")
    await turn(policy, conversation, "abcd")
    assert engine.prompts == [[3], [3, 100, 2, 4]]
    assert engine.sessions == ["e", "e"]
    (segment,) = conversation.log.segments()
    assert segment.token_ids.tolist() == [3, 100, 2, 4, 101, 102]
    assert segment.loss_mask.astype(int).tolist() == [0, 1, 1, 0, 1, 1]
    assert [m["content"] for m in conversation.messages] == ["abc", "xx", "abcd", "xx"]


async def test_a_template_that_does_not_extend_forks_and_trains_no_token_twice() -> None:
    engine = CountingEngine(sampled(100), sampled(101))
    policy = TokenPolicy(engine, LengthRenderer(extends=False), max_context_tokens=50)
    conversation = Conversation(agent="agent", episode_id="e")
    await turn(policy, conversation, "abc")
    await turn(policy, conversation, "abcd")
    assert engine.prompts[1] == [3, 1, 4]
    first, second = conversation.log.segments()
    assert first.token_ids[first.loss_mask].tolist() == [100]
    assert second.token_ids[second.loss_mask].tolist() == [101]
    assert conversation.log.num_forks == 1


async def test_the_turn_never_asks_for_more_than_the_context_holds() -> None:
    engine = CountingEngine(sampled(100, 101), sampled(102))
    policy = TokenPolicy(engine, LengthRenderer(), max_context_tokens=5)
    conversation = Conversation(agent="agent", episode_id="e")
    await turn(policy, conversation, "abc")
    assert engine.samplings[0].max_tokens == 4
    await turn(policy, conversation, "abc")
    assert engine.samplings[1].max_tokens == 1
    with pytest.raises(ContextLengthExceeded, match="6 prompt tokens, context of 5"):
        await turn(policy, conversation, "abc")


async def test_a_failed_call_leaves_no_sampled_token_behind_and_can_be_repeated() -> None:
    engine = CountingEngine(EngineError("502"), sampled(100))
    policy = TokenPolicy(engine, LengthRenderer(), max_context_tokens=50)
    conversation = Conversation(agent="agent", episode_id="e")
    conversation.observe([user("abc")])
    with pytest.raises(EngineError):
        await policy.act(conversation, sampling=Sampling())
    assert (conversation.log.token_ids, conversation.log.num_sampled) == ([3], 0)
    await policy.act(conversation, sampling=Sampling())
    assert engine.prompts == [[3], [3]]


async def test_an_answer_that_cannot_be_true_is_refused() -> None:
    bad = Answer(SampledTokens(token_ids=(1,), logprobs=(float("nan"),), versions=((0, 0, 1),)))
    empty = Answer(SampledTokens(token_ids=(), logprobs=(), versions=()))
    for answer, error in ((bad, RecordError), (empty, ModelError)):
        policy = TokenPolicy(CountingEngine(answer), LengthRenderer(), max_context_tokens=50)
        conversation = Conversation(agent="agent", episode_id="e")
        conversation.observe([user("abc")])
        with pytest.raises(error):
            await policy.act(conversation, sampling=Sampling())
        assert conversation.log.num_sampled == 0


async def test_a_frozen_policys_tokens_are_not_trainable() -> None:
    policy = TokenPolicy(
        CountingEngine(sampled(100)), LengthRenderer(), max_context_tokens=50, trainable=False
    )
    conversation = Conversation(agent="agent", episode_id="e")
    await turn(policy, conversation, "abc")
    (segment,) = conversation.log.segments()
    assert not segment.loss_mask.any()
