"""Who plays whom, in each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vime_agents.multi_agent.assign import assign
from vime_agents.multi_agent.seats import num_rotations, rotated
from vime_agents.policies.pool import Player, drawn
from vime_agents.policy import Policy


@dataclass(frozen=True, slots=True)
class Cast:
    """The players of an env of several agents; those of an episode are a pure function of its lot."""

    players: Mapping[str, Player]
    """By agent, role or `ANYBODY`."""
    rotate_seats: bool = False
    """Agents of one role, or of none, change seats from lot to lot; then pools draw for a whole rotation, so
    that each opponent is met in every seat."""

    def of_episode(
        self, agents: Sequence[str], roles: Mapping[str, str], lot: int
    ) -> dict[str, tuple[Policy, str]]:
        """Agent -> (its policy, the agent to whom that policy was given).

        Raises:
            UnknownIdError: a key is neither an agent nor a role. ConfigError: an agent has no policy.
        """
        turn = 0
        if self.rotate_seats:
            lot, turn = divmod(lot, num_rotations(agents, roles))
        policies = assign(agents, roles, drawn(self.players, lot))
        return {agent: (policies[of], of) for agent, of in rotated(agents, roles, turn).items()}
