"""Games of PettingZoo's, by `vime_envs.games.classic:ConnectFour` and so on. Need the extra `games`."""

from __future__ import annotations

from typing import Any

import numpy as np

from vime_agents.multi_agent.pettingzoo_game import pettingzoo_game

RockPaperScissors = pettingzoo_game(
    "classic/rps-v2",
    reward_range=(-15.0, 15.0),
    actions=("rock", "paper", "scissors"),
    name="RockPaperScissors",
)


class ConnectFour(pettingzoo_game("classic/connect_four-v3")):
    """Four in a row, by dropping marks into seven columns; 1 for the winner, -1 for the loser."""

    def describe(self, me: str, observation: Any) -> str:
        """The board, top row first: x is one's own, o the other's."""
        marks = np.where(observation[..., 0] == 1, "x", np.where(observation[..., 1] == 1, "o", "."))
        return "\n".join(" ".join(row) for row in [*marks.tolist(), list("0123456")])
