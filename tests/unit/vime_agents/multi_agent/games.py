"""Small games for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game
from vime_agents.multi_agent.game import whole_number


class Nim(Game):
    """Take 1 or 2 of 5 sticks in turns; whoever takes the last wins."""

    possible_agents = ("first", "second")
    zero_sum = True

    def start(self, rng: np.random.Generator) -> str:
        self.sticks = 5
        return "first"

    def view(self, me: str) -> str:
        return f"{self.sticks} sticks are left. Take 1 or 2."

    def parse(self, me: str, text: str) -> int:
        return whole_number(text, 1, 2)

    def move(self, me: str, taken: int) -> str | Mapping[str, float]:
        if taken > self.sticks:
            raise IllegalMove(f"only {self.sticks} is left")
        self.sticks -= taken
        other = "second" if me == "first" else "first"
        return other if self.sticks else {me: 1.0, other: -1.0}

    def legal(self, me: str) -> list[str]:
        return [str(n) for n in (1, 2) if n <= self.sticks]


class LastOneOut(Game):
    """Everybody names a number at once; whoever names the lowest leaves, until one is left or none."""

    possible_agents = ("a", "b", "c")
    roles = {"a": "player", "b": "player", "c": "player"}  # noqa: RUF012
    reward_range = (0.0, 3.0)

    def start(self, rng: np.random.Generator) -> Sequence[str]:
        self.secret = {agent: int(rng.integers(10**6, 10**7)) for agent in self.possible_agents}
        return self.possible_agents

    def rules(self, me: str) -> str:
        return f"Your secret is {self.secret[me]}."

    def view(self, me: str) -> str:
        return f"In play: {', '.join(self.agents)}. Name a number from 0 to 9."

    def parse(self, me: str, text: str) -> int:
        return whole_number(text, 0, 9)

    def moves(self, moves: Mapping[str, int]) -> Any:
        lowest = min(moves.values())
        for agent, number in moves.items():
            if number == lowest:
                self.tell(agent, "You are out.")
                self.leave(agent, 3.0 - len(self.agents), stop="out")
            else:
                self.give(agent, 0.5)
        if len(self.agents) > 1:
            return self.agents
        return dict.fromkeys(self.agents, 1.5) if self.agents else None

    def legal(self, me: str) -> list[str]:
        return [str(n) for n in range(10)]
