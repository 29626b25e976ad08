"""Games: legal moves in, scores out. A reply that is no legal move never breaks a game.

```
class Pick(Game):
    possible_agents = ("low", "high")

    def start(self, rng):
        return list(self.possible_agents)  # both at the same time

    def view(self, me):
        return "Pick a number from 1 to 9."

    def parse(self, me, text):
        return whole_number(text, 1, 9)  # raises IllegalMove

    def moves(self, picks):
        return {"low": picks["high"] / 9, "high": picks["low"] / 9}
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vime_agents.episode import Outcome
from vime_agents.errors import ContractError, IllegalMove
from vime_agents.messages import Message
from vime_agents.multi_agent.env import MultiAgentEnv, Next

_NUMBER = re.compile(r"(?:(?<![\w.])-)?(?<![\w.])[0-9]+(?:\.[0-9]+)?(?!\w)", re.ASCII)
_READ = 10_000
"""Characters, from the end, in which a last number or word is looked for: a search holds up all others."""
_SHOWN = 200
"""Characters of a bad reply that a record keeps."""


class Game(MultiAgentEnv):
    """A MultiAgentEnv with rules: `parse` and `move` (or `moves`) raise IllegalMove on what they forbid.

    The agent is then told why and asked again, `illegal_retries` times in an episode; after that it forfeits.
    The others are not asked again: what they replied at the same time is kept.

    Metrics: `illegal_moves` and `forfeits`, in all and by agent (`illegal_moves/X`).

    What an author writes, besides `start`, `view` and `rules`:

        parse(agent, text) -> move       a reply as a move; here: the text, stripped
        move(agent, move) -> Next        in turns; or moves({agent: move}) -> Next, at the same time
        forfeit(agents) -> Next          what happens when agents cannot or will not move
    """

    illegal_retries: ClassVar[int] = 1
    """Times that an agent is asked again in an episode; 0: the first illegal move forfeits."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._moves: dict[str, Any] = {}
        self._tries: dict[str, int] = {}

    # ------------------------------------------------------------------------------ author's hooks

    def parse(self, agent: str, text: str, /) -> Any:
        """The move that a reply says. Raises IllegalMove."""
        return text.strip()

    def move(self, agent: str, move: Any, /) -> Any:
        """Make one agent's move; what comes next. Raises IllegalMove, before anything changed."""
        raise ContractError(f"{type(self).__name__} needs `move` or `moves`")

    def moves(self, moves: Mapping[str, Any], /) -> Any:
        """Make the moves of all acting agents; what comes next. Here: the only agent's, by `move`.

        May raise IllegalMove, before anything changed, only when one agent acts: else nobody could tell whose
        move it was. What one move alone makes illegal belongs in `parse`.
        """
        if len(moves) != 1:
            raise ContractError(f"{type(self).__name__} lets {list(moves)} act at once and needs `moves`")
        ((agent, move),) = moves.items()
        return self.move(agent, move)

    def forfeit(self, agents: Sequence[str], /) -> Any:
        """What happens when `agents` forfeit. Here: the game ends, and they have lost it.

        Their reward, step rewards included, is the least that there is. The others share what they lost in a
        zero-sum game, and get the most that there is in another; when everybody forfeits at once, a zero-sum
        game is a draw.
        """
        low, high = self.reward_range
        others = [a for a in self.agents if a not in agents]
        lost, won = low, high
        if self.zero_sum:
            lost, won = (low, -low * len(agents) / len(others)) if others else (0.0, 0.0)
        total = dict.fromkeys(agents, lost) | dict.fromkeys(others, won)
        return {agent: reward - self.earned[agent] for agent, reward in total.items()}

    # ------------------------------------------------------------------------------------- the rules

    async def areset(self, **kwargs: Any) -> Any:
        """As of MultiAgentEnv."""
        self._moves, self._tries = {}, {}
        return await super().areset(**kwargs)

    async def advance(self, replies: Mapping[str, Message | Outcome], /) -> Next:
        """Replies -> moves; ask again, forfeit, or move."""
        again: list[str] = []
        for agent, reply in replies.items():
            if isinstance(reply, Outcome):
                self._why[agent] = reply
                continue
            try:
                self._moves[agent] = await self._hook("parse", agent, reply["content"])
            except IllegalMove as error:
                self._refuse(agent, error, reply["content"], again)
        if not self._why and not again:
            try:
                verdict = await self._hook("moves", dict(self._moves))
            except IllegalMove as error:
                verdict = self._refuse_the_only(error, replies, again)
            else:
                self._moves = {}
                return verdict
        if self._why:
            self._moves = {}
            return await self._forfeited()
        for agent in again:
            self._moves.pop(agent, None)
        return again

    def _refuse(self, agent: str, error: IllegalMove, text: str, again: list[str]) -> None:
        self._count("illegal_moves", agent)
        self._tries[agent] = self._tries.get(agent, 0) + 1
        if self._tries[agent] <= self.illegal_retries:
            self.tell(agent, f"That is not a legal move: {error}. Try again.")
            again.append(agent)
        else:
            detail = f"{error}; the reply was {text[:_SHOWN]!r}"
            self._why[agent] = Outcome(kind="terminated", stop="illegal_move", detail=detail)

    def _refuse_the_only(
        self, error: IllegalMove, replies: Mapping[str, Message | Outcome], again: list[str]
    ) -> None:
        if len(self._moves) != 1:
            raise ContractError(
                f"{type(self).__name__}.moves raised IllegalMove for {list(self._moves)} at once ({error}); "
                "raise it in `parse`"
            ) from error
        ((agent, reply),) = replies.items()
        assert not isinstance(reply, Outcome)
        self._refuse(agent, error, reply["content"], again)

    async def _forfeited(self) -> Any:
        agents = [a for a in self.agents if a in self._why]
        for agent in agents:
            self._count("forfeits", agent)
        verdict = await self._hook("forfeit", agents)
        if isinstance(verdict, Mapping):
            reasons = "; ".join(f"{a}: {self._why[a].stop}: {self._why[a].detail}" for a in agents)
            self.outcome = Outcome(kind="terminated", stop="forfeit", detail=reasons)
        return verdict

    def _count(self, name: str, agent: str) -> None:
        self.count(name)
        self.count(f"{name}/{agent}")


def whole_number(text: str, low: int, high: int) -> int:
    """The last number that a reply says, if it is a whole one within bounds. Raises IllegalMove."""
    found = _NUMBER.findall(text, _start(text))
    if not found:
        raise IllegalMove(f"answer with a whole number from {low} to {high}")
    last: str = found[-1]
    # By its length first: Python refuses to read numbers of thousands of digits.
    if "." in last or len(last) > len(str(low)) + len(str(high)) or not low <= int(last) <= high:
        raise IllegalMove(f"{last[:20]} is not a whole number from {low} to {high}")
    return int(last)


def one_of(text: str, choices: Sequence[str]) -> str:
    """The last of `choices` that a reply says as a word, in any case. Raises IllegalMove."""
    words = "|".join(re.escape(c) for c in sorted(choices, key=len, reverse=True))
    found = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE).findall(text, _start(text))
    if not found:
        raise IllegalMove(f"answer with one of {', '.join(choices)}")
    return next(c for c in choices if c.lower() == found[-1].lower())


def _start(text: str) -> int:
    # A position, not a slice: what stands before it still tells whether a word begins there.
    return max(0, len(text) - _READ)
