"""What the policy of one agent may know of the env besides what it is shown: for players without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from vime_agents.messages import Message
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.threads import call_hook


class SeatView:
    """One agent's hooks of a MultiAgentEnv."""

    def __init__(self, env: MultiAgentEnv, agent: str) -> None:
        self.env, self.agent = env, agent

    @property
    def unwrapped(self) -> SeatView:
        """Itself, as of a Gymnasium env."""
        return self

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """What its agent may reply."""
        return self.env.action_spaces[self.agent]

    async def gold(self) -> str | Message:
        """A reply that nobody can better, now. Raises ContractError: the env has none."""
        return await call_hook(self.env.gold, self.agent)

    async def legal(self) -> Sequence[str]:
        """Some replies that are legal now; empty: not known."""
        return await call_hook(self.env.legal, self.agent)
