"""Seats that change hands: whose policy plays which agent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def alike(agents: Sequence[str], roles: Mapping[str, str]) -> list[list[str]]:
    """Agents that may change seats with each other: those of one role, and those of none."""
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(roles.get(agent, ""), []).append(agent)
    return list(groups.values())


def num_rotations(agents: Sequence[str], roles: Mapping[str, str]) -> int:
    """After so many rotations everybody is back in the first seat."""
    return math.lcm(*(len(group) for group in alike(agents, roles)))


def rotated(agents: Sequence[str], roles: Mapping[str, str], turn: int) -> dict[str, str]:
    """Agent -> the agent whose policy plays it, after `turn` rotations."""
    return {
        agent: group[(place + turn) % len(group)]
        for group in alike(agents, roles)
        for place, agent in enumerate(group)
    }
