"""TicTacToe-v0: three in a row, for two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game
from vime_agents.multi_agent.game import whole_number

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_OTHER = {"X": "O", "O": "X"}


class TicTacToe(Game):
    """Three in a row, for two: the winner gets 1, the loser -1; a draw is 0 for both."""

    possible_agents = ("X", "O")
    zero_sum = True
    max_turns = 11  # nine moves, and one retry each

    def start(self, rng: np.random.Generator) -> str:
        """An empty board: a free square shows its number. X begins."""
        self.board = list("012345678")
        return "X"

    def view(self, me: str) -> str:
        """The board."""
        rows = "\n".join(" ".join(self.board[i : i + 3]) for i in (0, 3, 6))
        return f"You play {me}. The board:\n{rows}\nAnswer with the number of a free square."

    def parse(self, me: str, text: str) -> int:
        """The last number."""
        return whole_number(text, 0, 8)

    def move(self, me: str, square: int) -> str | Mapping[str, float]:
        """Take a square."""
        if self.board[square] in _OTHER:
            raise IllegalMove(f"square {square} is taken")
        self.board[square] = me
        if _winner(self.board) == me:
            return {me: 1.0, _OTHER[me]: -1.0}
        return _OTHER[me] if self.legal(me) else {"X": 0.0, "O": 0.0}

    def legal(self, me: str) -> list[str]:
        """The free squares."""
        return [square for square in self.board if square not in _OTHER]

    def gold(self, me: str) -> str:
        """A move that no opponent can punish."""
        return _best(tuple(self.board), me)[1]


def _winner(board: Sequence[str]) -> str | None:
    return next((board[a] for a, b, c in _LINES if board[a] == board[b] == board[c]), None)


@cache
def _best(board: tuple[str, ...], me: str) -> tuple[int, str]:
    """(what `me`, to move, can be sure of: 1, 0 or -1; the first square that gets it)."""
    if _winner(board) is not None:
        return -1, ""
    free = [square for square in board if square not in _OTHER]
    if not free:
        return 0, ""
    after = {s: tuple(me if square == s else square for square in board) for s in free}
    worth = {s: -_best(after[s], _OTHER[me])[0] for s in free}
    best = max(free, key=lambda s: worth[s])
    return worth[best], best
