"""Every check: importing this module fills `CHECKS`."""

from __future__ import annotations

from vime_agents.checking import (
    answer_form,
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
    walls,
)
from vime_agents.checking.games.catalog import GAME_CHECKS
from vime_agents.checking.games.session import open_session
from vime_agents.checking.kit import CHECKS

__all__ = [
    "CHECKS",
    "GAME_CHECKS",
    "answer_form",
    "blocking",
    "determinism",
    "interface",
    "isolation",
    "leaks",
    "limits",
    "open_session",
    "replies",
    "rewards",
    "speed",
    "tasks",
    "tool_use",
    "walls",
]
