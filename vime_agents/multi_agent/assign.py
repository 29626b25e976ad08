"""Who plays whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from vime_agents.errors import ConfigError, UnknownIdError

T = TypeVar("T")

ANYBODY = "*"
"""Key of the policy that plays every agent without one of its own."""


def assign(agents: Sequence[str], roles: Mapping[str, str], policies: T | Mapping[str, T]) -> dict[str, T]:
    """Agent -> its policy: by the agent's name, else by its role, else by `ANYBODY`.

    Args:
        agents: who takes part.
        roles: agent -> role.
        policies: one policy for everybody; or name, role or `ANYBODY` -> policy.

    Raises:
        UnknownIdError: a key is neither an agent nor a role. ConfigError: an agent has no policy.
    """
    if not isinstance(policies, Mapping):
        return dict.fromkeys(agents, policies)
    names = {*agents, *roles.values()}
    for key in policies:
        if key not in names and key != ANYBODY:
            raise UnknownIdError("agent or role", key, names)
    found: dict[str, T] = {}
    for agent in agents:
        key = next((k for k in (agent, roles.get(agent), ANYBODY) if k in policies), None)
        if key is None:
            raise ConfigError(f"nobody plays {agent!r}: give a policy for it, its role or {ANYBODY!r}")
        found[agent] = policies[key]
    return found
