"""KuhnPoker-v0: the smallest poker, three cards and one bet (Kuhn 1950)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game
from vime_agents.multi_agent.game import one_of

_CARDS = ("jack", "queen", "king")
_OTHER = {"first": "second", "second": "first"}


class KuhnPoker(Game):
    """Each antes one chip and sees one of three cards; the reward is the chips won."""

    possible_agents = ("first", "second")
    reward_range = (-2.0, 2.0)
    zero_sum = True
    max_turns = 5  # three actions, and one retry each

    def start(self, rng: np.random.Generator) -> str:
        """Deal."""
        ranks = rng.permutation(3)
        self.rank = {"first": int(ranks[0]), "second": int(ranks[1])}
        self.actions: list[str] = []
        return "first"

    def rules(self, me: str) -> str:
        """What everybody knows, and one's own card."""
        return (
            "Kuhn poker: a jack, a queen and a king; each of two players puts one chip in and gets one card. "
            "After a bet of one more chip the other calls or folds; the higher card wins what is in.\n"
            f"You act {me}. {self._card(me)}"
        )

    def view(self, me: str) -> str:
        """What was done so far, and what may be done."""
        return f"Actions so far: {', '.join(self.actions) or 'none'}. {self._ask()}"

    def parse(self, me: str, text: str) -> str:
        """The last action that the reply names."""
        action = one_of(text, ("check", "bet", "call", "fold"))
        if action not in self.legal(me):
            raise IllegalMove(f"you cannot {action} now. {self._ask()}")
        return action

    def move(self, me: str, action: str) -> str | Mapping[str, float]:
        """Act."""
        self.actions.append(action)
        if action == "fold":
            return {me: -1.0, _OTHER[me]: 1.0}
        if action == "bet" or self.actions == ["check"]:
            return _OTHER[me]
        winner = max(self.rank, key=lambda agent: self.rank[agent])
        chips = 2.0 if action == "call" else 1.0
        for agent in self.agents:
            self.tell(agent, f"The other card is the {_CARDS[self.rank[_OTHER[agent]]]}.")
        return {winner: chips, _OTHER[winner]: -chips}

    def legal(self, me: str) -> Sequence[str]:
        """Two of the four actions."""
        return ("call", "fold") if self.actions[-1:] == ["bet"] else ("check", "bet")

    def gold(self, me: str) -> str:
        """An action that an equilibrium plays: bet and call with a king, check and fold with the others."""
        legal = self.legal(me)
        return next(action for action in legal if (action in ("bet", "call")) == (self.rank[me] == 2))

    def forfeit(self, agents: Sequence[str]) -> Mapping[str, float]:
        """Whoever does not act folds: no bet of its own is in yet."""
        (me,) = agents
        return {me: -1.0, _OTHER[me]: 1.0}

    def secrets(self, me: str) -> Sequence[str]:
        """One's card."""
        return [self._card(me)]

    def _card(self, me: str) -> str:
        return f"Your card is the {_CARDS[self.rank[me]]}."

    def _ask(self) -> str:
        return f"Answer {' or '.join(self.legal(''))}."
