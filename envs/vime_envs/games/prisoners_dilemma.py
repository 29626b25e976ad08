"""PrisonersDilemma-v0: cooperate or defect, ten times, both at the same time (Axelrod 1980)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vime_agents.multi_agent import Game
from vime_agents.multi_agent.game import one_of
from vime_agents.reward import Score

_POINTS = {("C", "C"): 3, ("C", "D"): 0, ("D", "C"): 5, ("D", "D"): 1}
_WORDS = {"cooperate": "C", "defect": "D"}


class PrisonersDilemma(Game):
    """Ten rounds, both choose at once; the reward is one's points a round, from 0 to 5."""

    possible_agents = ("player_0", "player_1")
    roles = {"player_0": "player", "player_1": "player"}  # noqa: RUF012
    reward_range = (0.0, 5.0)
    rounds = 10

    def start(self, rng: np.random.Generator) -> Sequence[str]:
        """Both choose."""
        self.history: list[Mapping[str, str]] = []
        return self.possible_agents

    def rules(self, me: str) -> str:
        """The payoffs."""
        return (
            f"You and another player choose {self.rounds} times, both at once, to cooperate or to defect. "
            "Both cooperate: 3 points each. Both defect: 1 each. One defects: 5 for it, 0 for the other."
        )

    def view(self, me: str) -> str:
        """The last round, from one's own side."""
        ask = f"Round {len(self.history) + 1} of {self.rounds}: cooperate or defect?"
        if not self.history:
            return ask
        other = self._other(me)
        return f"You: {self.history[-1][me]}. The other: {self.history[-1][other]}. {ask}"

    def parse(self, me: str, text: str) -> str:
        """The last of the two words."""
        return one_of(text, tuple(_WORDS))

    def moves(self, moves: Mapping[str, str]) -> Sequence[str] | Mapping[str, Score]:
        """Score the round."""
        self.history.append(moves)
        for me in moves:
            points = _POINTS[_WORDS[moves[me]], _WORDS[moves[self._other(me)]]]
            self.give(me, points / self.rounds)
        return self.possible_agents if len(self.history) < self.rounds else self.standing()

    def standing(self) -> Mapping[str, Score]:
        """What was earned; how often one cooperated is a metric."""
        played = max(len(self.history), 1)
        shares = {a: sum(m[a] == "cooperate" for m in self.history) / played for a in self.agents}
        return {a: {"rest": 0.0, "cooperation": (share, 0.0)} for a, share in shares.items()}

    def forfeit(self, agents: Sequence[str]) -> Mapping[str, Score]:
        """Whoever does not choose ends with nothing; the other, with 3 points for each round not played."""
        rest = 3 * (self.rounds - len(self.history)) / self.rounds
        return {a: -self.earned[a] if a in agents else rest for a in self.agents}

    def legal(self, me: str) -> Sequence[str]:
        """Both."""
        return tuple(_WORDS)

    def gold(self, me: str) -> str:
        """Against a player who will not answer to it, nothing is better."""
        return "defect"

    def _other(self, me: str) -> str:
        return "player_1" if me == "player_0" else "player_0"
