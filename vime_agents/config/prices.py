"""`--price` -> what tokens cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from vime_agents.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars for a million tokens."""

    prompt: float
    """Read."""
    sampled: float
    """Written."""
    cached: float
    """Read, of a prefix that the server still had."""

    @classmethod
    def parse(cls, text: str, flag: str = "--price") -> Self:
        """`IN,OUT` or `IN,OUT,CACHED`; cached tokens cost what others do unless it is said.

        Raises:
            ConfigError: another shape, or a number that is no price.
        """
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3) or not all(0 <= n < math.inf for n in numbers):
            raise ConfigError(
                f"{flag}: must be IN,OUT or IN,OUT,CACHED, dollars for a million tokens read, written and "
                f"read from the server's cache, such as 0.25,2 or 0.25,2,0.025; got {text!r}"
            )
        return cls(prompt=numbers[0], sampled=numbers[1], cached=numbers[2 if len(numbers) == 3 else 0])

    def cost(self, prompt_tokens: int, sampled_tokens: int, cached_tokens: int = 0) -> float:
        """Dollars; `cached_tokens` are part of `prompt_tokens`."""
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.prompt + cached_tokens * self.cached + sampled_tokens * self.sampled) / 1e6
