"""Every check of games: importing this module fills `GAME_CHECKS`."""

from __future__ import annotations

from dataclasses import replace

from vime_agents.checking import (
    blocking,
    determinism,
    interface,
    isolation,
    leaks,
    limits,
    replies,
    speed,
    tasks,
)
from vime_agents.checking.games import rules, symmetry
from vime_agents.checking.games.session import GAME_CHECKS
from vime_agents.checking.kit import CHECKS

CARRIED_OVER = (
    "plays",
    "close",
    "step-after-end",
    "random-actions",
    "task-ids",
    "task-json",
    "split-overlap",
    "task-options",
    "global-rng",
    "same-seed",
    "seeds-differ",
    "fresh-processes",
    "quiet-import",
    "shared-state",
    "reset-isolation",
    "instances",
    "aliasing",
    "first-action",
    "hostile-text",
    "observation-json",
    "observation-size",
    "cancellation",
    "loop-blocking",
    "leak-processes",
    "leak-files",
    "leak-threads",
    "leak-tasks",
    "leak-folders",
    "leak-memory",
    "speed",
)
"""Checks of envs of one agent that say the same of a game: they only play, by a session."""

_known = {*CARRIED_OVER, *GAME_CHECKS}
for _name in CARRIED_OVER:
    _check = CHECKS[_name]
    GAME_CHECKS[_name] = replace(
        _check,
        needs=tuple(name for name in _check.needs if name in _known),
        explained_by=tuple(name for name in _check.explained_by if name in _known),
    )

__all__ = [
    "GAME_CHECKS",
    "blocking",
    "determinism",
    "interface",
    "isolation",
    "leaks",
    "limits",
    "replies",
    "rules",
    "speed",
    "symmetry",
    "tasks",
]
