"""A chat policy whose answers are kept: what was asked before, by the same episode, is not asked again."""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, overload

from vime_agents.deadlines import off_the_clock
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
    episode asked just that before, calls without an answer left out. So neither two samples of a task nor a
    fresh attempt at an episode nor two calls at once ever share an answer, although they ask the same.

    What raises is not kept, nor is what the engine aborted. An answer that was cut off at its limit is.
    """

    exact_tokens = False

    def __init__(self, policy: OpenAIChatPolicy, cache: ResponseCache) -> None:
        """`policy` is closed with this one; `cache` stays the caller's to close."""
        self.policy, self.cache, self.name = policy, cache, policy.name
        self._asked: OrderedDict[str, Requests] = OrderedDict()
        """By episode, the one that asked last at the end."""

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
        with self._of_episode(conversation).asking(request) as asked:
            key = hashlib.sha256(request + b"/%d" % asked.number).digest()
            with off_the_clock():  # the model took none of it, and it has a bound of its own
                generation = await self.cache.get(key)
            if generation is not None:
                generation = replace(generation, from_cache=True)
            else:
                generation = await self.policy.act(conversation, sampling=sampling, timeout_s=timeout_s)
                if generation.finish_reason == "abort":
                    return generation  # the attempt fails by it, and the next one asks in its place
                self.cache.put(key, generation)
            asked.answered = True
        return generation

    async def aclose(self) -> None:
        """Release the policy's connections."""
        await self.policy.aclose()

    def _of_episode(self, conversation: Conversation) -> Requests:
        episode = _episode_of(conversation)
        requests = self._asked.setdefault(episode, Requests())
        self._asked.move_to_end(episode)
        while len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return requests


@dataclass(slots=True)
class Asked:
    """One call."""

    number: int
    """How many of its request are before it: the least that no other call has."""
    answered: bool = False


class Requests:
    """What one episode asked, and how often."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        """Request -> the numbers of its calls that are under way or were answered, as bits."""

    @contextlib.contextmanager
    def asking(self, request: bytes) -> Iterator[Asked]:
        """A call, whose number is free again unless it is answered."""
        taken = self._numbers.get(request, 0)
        bit = ~taken & (taken + 1)
        self._numbers[request] = taken | bit
        asked = Asked(bit.bit_length() - 1)
        try:
            yield asked
        finally:
            if not asked.answered:
                self._numbers[request] &= ~bit


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
    who = [base_url, _episode_of(conversation), conversation.agent, conversation.turn]
    # The order of keys counts: a chat template writes a tool's schema as it comes.
    return hashlib.sha256(exact_bytes([who, body])).digest()


def _episode_of(conversation: Conversation) -> str:
    """Its id without the attempt."""
    return conversation.of_episode or conversation.episode_id
