"""Every check: importing this module fills `CHECKS`."""

from __future__ import annotations

from vime_agents.checking import (
    blocking,
    determinism,
    interface,
    isolation,
    leaks,
    limits,
    replies,
    rewards,
    speed,
    tasks,
    tool_use,
)
from vime_agents.checking.kit import CHECKS

__all__ = [
    "CHECKS",
    "blocking",
    "determinism",
    "interface",
    "isolation",
    "leaks",
    "limits",
    "replies",
    "rewards",
    "speed",
    "tasks",
    "tool_use",
]
