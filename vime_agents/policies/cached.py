"""A chat policy whose answers are kept: what was asked before, by the same episode, is not asked again."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, overload

from vime_agents.policies.openai_chat import OpenAIChatPolicy, request_body
from vime_agents.policies.pool import Player, PolicyPool
from vime_agents.policies.response_cache import ResponseCache, exact_bytes
from vime_agents.policy import Conversation, Generation, Policy, Sampling

_REMEMBERED = 10_000
"""Episodes whose requests are remembered: more than are in flight."""


class CachedPolicy:
    """Another policy, asked only for what is not in the cache.

    An answer is found again by everything that decides it, the server, the model and the whole body, and by
    which request it is: the episode with its sample's number, the agent, the turn, and how many times the
    episode got an answer to just that before. So neither two samples of a task nor a fresh attempt at an
    episode ever share an answer, although they ask the same.

    What raises is not kept, nor is what the engine aborted. An answer that was cut off at its limit is.
    """

    exact_tokens = False

    def __init__(self, policy: OpenAIChatPolicy, cache: ResponseCache) -> None:
        """`policy` is closed with this one; `cache` stays the caller's to close."""
        self.policy, self.cache, self.name = policy, cache, policy.name
        self._answered: OrderedDict[str, Counter[bytes]] = OrderedDict()
        """Episode -> its requests, by what they are, with the answers that they got."""

    @property
    def retries(self) -> Mapping[str, int]:
        """Further tries so far, as of the policy."""
        return self.policy.retries

    @property
    def most_calls_at_once(self) -> int:
        """Most that the server ever had at once, as of the policy."""
        return self.policy.most_calls_at_once

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """The answer of the cache, or else the policy's own. Raises what the policy does."""
        body = request_body(self.policy.model, conversation, sampling)
        request = request_digest(self.policy.base_url, body, conversation)
        answered = self._of_episode(conversation)
        key = hashlib.sha256(request + b"/%d" % answered[request]).digest()
        generation = await self.cache.get(key)
        if generation is not None:
            generation = replace(generation, from_cache=True)
        else:
            generation = await self.policy.act(conversation, sampling=sampling, timeout_s=timeout_s)
            if generation.finish_reason == "abort":
                return generation  # the attempt fails by it, and the next one asks for its first answer
            self.cache.put(key, generation)
        answered[request] += 1
        return generation

    async def aclose(self) -> None:
        """Release the policy's connections."""
        await self.policy.aclose()

    def _of_episode(self, conversation: Conversation) -> Counter[bytes]:
        answered = self._answered.setdefault(conversation.of_episode or conversation.episode_id, Counter())
        self._answered.move_to_end(conversation.of_episode or conversation.episode_id)
        while len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        return answered


@overload
def with_cache(player: Policy, cache: ResponseCache) -> Policy: ...
@overload
def with_cache(player: Player, cache: ResponseCache) -> Player: ...
def with_cache(player: Player, cache: ResponseCache) -> Player:
    """The same player, with what models behind somebody's server answer kept; others are as they were.

    Whoever closes `player` need not close what this returns.
    """
    if isinstance(player, PolicyPool):
        return PolicyPool([with_cache(member, cache) for member in player.members], seed=player.seed)
    return CachedPolicy(player, cache) if isinstance(player, OpenAIChatPolicy) else player


def request_digest(base_url: str, body: Mapping[str, Any], conversation: Conversation) -> bytes:
    """SHA-256 of what is asked, of whom, and by which turn of whom."""
    episode = conversation.of_episode or conversation.episode_id
    who = [base_url, episode, conversation.agent, conversation.turn]
    # The order of keys counts: a chat template writes a tool's schema as it comes.
    return hashlib.sha256(exact_bytes([who, body])).digest()
