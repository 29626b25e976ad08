"""Negotiation-v0: share out things that are worth different points to each (Lewis et al. 2017)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game
from vime_envs.games.held_out import in_test_split

ITEMS = ("books", "hats", "balls")
_TOTAL = 10
"""Points that everything together is worth to each."""
_OTHER = {"first": "second", "second": "first"}
_OFFER = re.compile(r"\bOFFER\s+(\d{1,2})\s*books?,?\s*(\d{1,2})\s*hats?,?\s*(\d{1,2})\s*balls?\b", re.I)
_WORD = re.compile(r"\b(ACCEPT|WALK)\b", re.I)
_SHOWN = 1000
"""Characters of what one says that the other reads, from the end."""

Share = tuple[int, ...]
"""How many of each of ITEMS."""


class Negotiation(Game):
    """Offers in turn; the reward is what one's share is worth, of all there is; without a deal both have 0.

    What the things are worth to one is known to it alone. The other reads all that one says.
    """

    possible_agents = ("first", "second")
    roles = {"first": "negotiator", "second": "negotiator"}  # noqa: RUF012
    reward_range = (0.0, 1.0)
    num_messages = 10
    max_turns = num_messages + 2  # one retry each

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Numbers of things, and what one of each is worth: all are worth 10, and none nothing to both.

        No other split has the same, nor the same with the two changed round.
        """
        while True:
            counts = [int(n) for n in rng.integers(1, 5, len(ITEMS))]
            worth = [v for v in product(range(_TOTAL + 1), repeat=len(ITEMS)) if value(counts, v) == _TOTAL]
            if len(worth) < 2:
                continue
            first, second = (worth[i] for i in rng.integers(len(worth), size=2))
            in_test = in_test_split({"deal": [counts, *sorted((first, second))]})
            if in_test == (self.split == "test") and all(map(any, zip(first, second, strict=True))):
                return {"counts": counts, "worth": {"first": list(first), "second": list(second)}}

    def start(self, rng: np.random.Generator) -> str:
        """Nothing was said."""
        self.said: list[str] = []
        self.offer: Share | None = None
        return "first"

    def rules(self, me: str) -> str:
        """What there is, what it is worth to oneself, and how one speaks."""
        things = ", ".join(f"{n} {item}" for n, item in zip(self.task["counts"], ITEMS, strict=True))
        return (
            f"You and another share out {things}. What they are worth to you, in points: {self._points(me)}; "
            "to the other they are worth something else. Without a deal both get nothing.\n"
            f"You speak in turn, at most {self.num_messages} times in all; the other reads what you say. End "
            "with one of these, alone on the last line:\n"
            "OFFER 1 books, 0 hats, 2 balls: what you would keep (in your numbers); the rest is the other's\n"
            "ACCEPT: take the other's last offer\n"
            "WALK: end it without a deal"
        )

    def view(self, me: str) -> str:
        """What the other said."""
        left = self.num_messages - len(self.said)
        ask = f"{left} message{'s are' if left > 1 else ' is'} left."
        return f"The other says:\n{self.said[-1][-_SHOWN:]}\n\n{ask}" if self.said else f"You begin. {ask}"

    def parse(self, me: str, text: str) -> tuple[str, Share | str]:
        """(what was said, the share that one would keep, or the word) from the last line."""
        line = text.strip().rpartition("\n")[2][-200:]
        if found := _OFFER.search(line):
            keep = tuple(int(n) for n in found.groups())
            if any(k > n for k, n in zip(keep, self.task["counts"], strict=True)):
                raise IllegalMove(f"there are only {self._all()}")
            return text.strip(), keep
        if (found := _WORD.search(line)) is None:
            raise IllegalMove("end with OFFER and three numbers, ACCEPT or WALK, on the last line")
        word = found[1].upper()
        if word == "ACCEPT" and self.offer is None:
            raise IllegalMove("there is no offer to accept")
        return text.strip(), word

    def move(self, me: str, move: tuple[str, Share | str]) -> str | Mapping[str, Any]:
        """Speak, or end it."""
        text, what = move
        self.said.append(text)
        if what == "WALK":
            return self._no_deal()
        if isinstance(what, str):
            assert self.offer is not None
            share = {_OTHER[me]: self.offer, me: self._rest(self.offer)}
            self.tell(_OTHER[me], "The other accepts.")
            return {a: self._score(value(share[a], self.task["worth"][a]), dealt=True) for a in self.agents}
        self.offer = what
        return _OTHER[me] if len(self.said) < self.num_messages else self._no_deal()

    def forfeit(self, agents: Sequence[str]) -> Mapping[str, Any]:
        """No deal."""
        return self._no_deal()

    def legal(self, me: str) -> list[str]:
        """Every offer, and the two words."""
        words = ["WALK"] if self.offer is None else ["ACCEPT", "WALK"]
        return [*words, *(_say(keep) for keep in self._shares())]

    def gold(self, me: str) -> str:
        """The share with the greatest product of both's points (Nash 1950): offer it, or accept one."""
        mine, others = self.task["worth"][me], self.task["worth"][_OTHER[me]]

        def worth(keep: Share) -> int:
            return value(keep, mine) * value(self._rest(keep), others)

        best = max(self._shares(), key=worth)
        if self.offer is not None and worth(self._rest(self.offer)) == worth(best):
            return "ACCEPT"
        return _say(best)

    def secrets(self, me: str) -> list[str]:
        """What things are worth to oneself, unless they are worth the same to the other."""
        worth = self.task["worth"]
        return [self._points(me)] if worth["first"] != worth["second"] else []

    def _points(self, me: str) -> str:
        worth = self.task["worth"][me]
        return ", ".join(f"one of the {item} {v}" for v, item in zip(worth, ITEMS, strict=True))

    def _shares(self) -> list[Share]:
        return list(product(*(range(n + 1) for n in self.task["counts"])))

    def _rest(self, keep: Share) -> Share:
        return tuple(n - k for n, k in zip(self.task["counts"], keep, strict=True))

    def _all(self) -> str:
        return _say(tuple(self.task["counts"])).removeprefix("OFFER ")

    def _no_deal(self) -> Mapping[str, Any]:
        return {agent: self._score(0, dealt=False) for agent in self.agents}

    def _score(self, points: int, *, dealt: bool) -> Mapping[str, float | tuple[float, float]]:
        return {"share": points / _TOTAL, "deal": (float(dealt), 0.0)}


def value(counts: Sequence[int], worth: Sequence[int]) -> int:
    """Points of so many of each thing."""
    return sum(n * v for n, v in zip(counts, worth, strict=True))


def _say(keep: Share) -> str:
    return "OFFER " + ", ".join(f"{n} {item}" for n, item in zip(keep, ITEMS, strict=True))
