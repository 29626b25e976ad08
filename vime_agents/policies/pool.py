"""Several policies, one of whom plays: an opponent for each episode."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence

from vime_agents.errors import ConfigError
from vime_agents.policy import Policy


class PolicyPool:
    """Who plays an agent, drawn for each episode.

    Guarantees: who is drawn is a pure function of (seed, lot); each of the n members has one of the first n
    lots, one of the next n, and so on, in an order that is drawn anew for each n.
    """

    def __init__(self, members: Sequence[Policy], *, seed: str) -> None:
        """`members`: with names of their own; `seed`: of the draw, another one for each agent.

        Raises ConfigError: nobody, or two of the same name, whose games could not be told apart.
        """
        if not members:
            raise ConfigError("a pool of opponents has no member")
        names = [member.name for member in members]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"a pool of opponents has two members named {', '.join(sorted(twice))}")
        self.members, self.seed = tuple(members), seed

    @property
    def name(self) -> str:
        """All members."""
        return "|".join(member.name for member in self.members)

    def draw(self, lot: int) -> Policy:
        """Who plays the episodes of this lot."""
        round_, place = divmod(lot, len(self.members))
        order = list(self.members)
        random.Random(f"{self.seed}/{round_}").shuffle(order)
        return order[place]

    async def aclose(self) -> None:
        """Release what the members have, also where one of them raises; that is raised at the end."""
        async with contextlib.AsyncExitStack() as stack:
            for member in self.members:
                stack.push_async_callback(member.aclose)


Player = Policy | PolicyPool
"""Who plays an agent."""


def drawn(players: Mapping[str, Player], lot: int) -> dict[str, Policy]:
    """The policies of the episodes of one lot."""
    return {key: p.draw(lot) if isinstance(p, PolicyPool) else p for key, p in players.items()}
