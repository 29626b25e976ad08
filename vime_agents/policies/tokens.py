"""The policy that keeps exact tokens: render only what is new, send ids, get ids, keep both."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from vime_agents.errors import ModelError
from vime_agents.policy import ContextLengthExceeded, Conversation, Generation, Sampling, Usage
from vime_agents.rendering.renderer import Renderer
from vime_agents.token_log import SampledTokens


class EngineAnswer(Protocol):
    """What an engine gives back."""

    @property
    def sampled(self) -> SampledTokens:
        """Ids, log-probs, weight versions."""
        ...

    @property
    def finish_reason(self) -> str:
        """stop, length, abort, ..."""
        ...


class TokenEngine(Protocol):
    """Samples tokens after tokens; `vime_agents.serving.engine_client.EngineClient` is one."""

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, session_id: str, timeout_s: float | None
    ) -> EngineAnswer:
        """Sample after `token_ids`. Raises EngineError, ContextLengthExceeded, TimeoutError."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class TokenPolicy:
    """A policy over an engine that takes and gives token ids.

    Guarantees: the ids that the engine reads are the ids that it sampled before, verbatim, plus rendered new
    messages; `conversation.log` holds exactly what was read and sampled.
    """

    exact_tokens = True

    def __init__(
        self,
        engine: TokenEngine,
        renderer: Renderer,
        *,
        name: str = "policy",
        max_context_tokens: int,
        trainable: bool = True,
    ) -> None:
        self.engine, self.renderer, self.name = engine, renderer, name
        self.max_context_tokens, self.trainable = max_context_tokens, trainable

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """Render the new messages, sample, parse."""
        self._render(conversation)
        log = conversation.log
        room = self.max_context_tokens - len(log)
        if room < 1:
            raise ContextLengthExceeded(len(log), self.max_context_tokens)
        num_prompt = len(log)
        answer = await self.engine.generate(
            log.token_ids, _within(sampling, room), session_id=conversation.episode_id, timeout_s=timeout_s
        )
        if not answer.sampled.token_ids:
            raise ModelError("the engine sampled no token")
        log.append_sampled(answer.sampled, turn=conversation.turn, trainable=self.trainable)
        return Generation(
            message=self.renderer.parse(answer.sampled.token_ids),
            finish_reason=answer.finish_reason,
            usage=Usage(prompt_tokens=num_prompt, sampled_tokens=len(answer.sampled.token_ids)),
        )

    async def aclose(self) -> None:
        """Release connections."""
        await self.engine.aclose()

    def _render(self, conversation: Conversation) -> None:
        new = conversation.take_new()
        if not new:
            return
        log, turn = conversation.log, conversation.turn
        if not len(log):
            log.extend(self.renderer.initial(new, conversation.tools), turn=turn)
            return
        pieces = self.renderer.extend(log.token_ids, new, conversation.tools)
        if pieces is not None:
            log.extend(pieces, turn=turn)
        else:
            log.record_prompt(self.renderer.initial(conversation.messages, conversation.tools), turn=turn)


def _within(sampling: Sampling, room: int) -> Sampling:
    return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)
