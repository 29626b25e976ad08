"""What the calls of a policy take, counted as they are answered, and a budget for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from vime_agents.config.prices import Prices
from vime_agents.policy import Conversation, Generation, Policy, Sampling, Usage


@dataclass(slots=True, kw_only=True)
class Spent:
    """What answered calls took, those of episodes that failed and were tried again included."""

    calls: int = 0
    calls_without_usage: int = 0
    """Calls whose tokens the server did not count: what they took is in none of the sums."""
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Those of `prompt_tokens` that the server had in its prefix cache, where it says so."""
    sampled_tokens: int = 0
    retries: dict[str, int] = field(default_factory=dict)
    """Further tries of calls, by what was wrong with the one before: HTTP 429, no connection, ..."""
    most_calls_at_once: int = 0
    """Most that their server had at once, where calls wait for a place (`policies/admission.py`)."""

    @property
    def total_tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.sampled_tokens

    def add(self, usage: Usage) -> None:
        """One more call."""
        self.calls += 1
        self.calls_without_usage += usage.prompt_tokens is None or usage.sampled_tokens is None
        self.prompt_tokens += usage.prompt_tokens or 0
        self.cached_prompt_tokens += usage.cached_prompt_tokens or 0
        self.sampled_tokens += usage.sampled_tokens or 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; also of that of releases that knew nothing of retries.

        Raises KeyError, ValueError, TypeError, AttributeError: it is none.
        """
        counts = {f.name: int(values[f.name]) for f in fields(cls) if f.name not in _NEWER}
        return cls(
            **counts,
            retries={str(what): int(n) for what, n in values.get("retries", {}).items()},
            most_calls_at_once=int(values.get("most_calls_at_once", 0)),
        )


_NEWER = frozenset({"retries", "most_calls_at_once"})


@dataclass(slots=True, kw_only=True)
class Meter:
    """What was spent so far, at which prices, and whether that is all that may be."""

    prices: Prices | None = None
    max_cost: float | None = None
    """In dollars; needs `prices`."""
    max_tokens: int | None = None
    """Read and written together."""
    spent: Spent = field(default_factory=Spent)

    @property
    def cost(self) -> float | None:
        """Dollars so far; None without prices."""
        if self.prices is None:
            return None
        s = self.spent
        return self.prices.cost(s.prompt_tokens, s.sampled_tokens, s.cached_prompt_tokens)

    @property
    def limited(self) -> bool:
        """Whether there is a budget."""
        return self.max_cost is not None or self.max_tokens is not None

    @property
    def exhausted(self) -> str:
        """Which budget is spent, in words; empty while none is."""
        cost = self.cost
        if self.max_cost is not None and cost is not None and cost >= self.max_cost:
            return f"${cost:.4f} of ${self.max_cost:g}"
        if self.max_tokens is not None and self.spent.total_tokens >= self.max_tokens:
            return f"{self.spent.total_tokens} of {self.max_tokens} tokens"
        return ""


class MeteredPolicy:
    """Another policy, whose calls are counted."""

    def __init__(self, policy: Policy, meter: Meter) -> None:
        """`policy` stays the caller's to close."""
        self.policy, self.meter = policy, meter
        self.name, self.exact_tokens = policy.name, policy.exact_tokens
        self._retries = self._retries_so_far()

    def begin(self, conversation: Conversation, env: Any) -> None:
        """Tell the policy which env it plays in, if it wants to know."""
        begin = getattr(self.policy, "begin", None)
        if begin is not None:
            begin(conversation, env)

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """The policy's own answer. A call that raises has no usage to count, nor has one that was kept."""
        try:
            generation = await self.policy.act(conversation, sampling=sampling, timeout_s=timeout_s)
        finally:
            self._count_retries()
        if not generation.from_cache:
            self.meter.spent.add(generation.usage)
        return generation

    def _count_retries(self) -> None:
        before, self._retries = self._retries, self._retries_so_far()
        spent = self.meter.spent
        for what, count in (self._retries - before).items():
            spent.retries[what] = spent.retries.get(what, 0) + count
        spent.most_calls_at_once = max(
            spent.most_calls_at_once, getattr(self.policy, "most_calls_at_once", 0)
        )

    def _retries_so_far(self) -> Counter[str]:
        return Counter(getattr(self.policy, "retries", {}))

    async def aclose(self) -> None:
        """Release the policy's connections."""
        await self.policy.aclose()
