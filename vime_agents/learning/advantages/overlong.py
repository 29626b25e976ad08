"""A part of the reward that falls with the length, near the longest allowed one."""

from __future__ import annotations

from vime_agents.errors import ConfigError


def overlong_penalty(length: int, *, max_length: int, buffer: int, factor: float = 1.0) -> float:
    """`min(0, -(length - (max_length - buffer)) / buffer * factor)`: 0 before the buffer, -factor at its end.

    DAPO, arXiv:2503.14476, section 3.4. Add it to an episode's reward.

    Args:
        length: Sampled tokens, not those of tools or prompts: only the policy's own can be shortened.
        max_length: Where the penalty is -factor.
        buffer: Tokens before `max_length` over which it grows.
        factor: The largest penalty.

    Raises:
        ConfigError: not 0 < buffer <= max_length.
    """
    if not 0 < buffer <= max_length:
        raise ConfigError(f"overlong buffer {buffer}: must be above 0 and at most max_length {max_length}")
    return min(0.0, -(length - (max_length - buffer)) / buffer * factor)
