"""GuessNumber-v0: find a number from 1 to 100 by "higher" and "lower", alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vime_agents.env import AgentEnv
from vime_agents.errors import IllegalMove
from vime_agents.messages import Message, user
from vime_agents.multi_agent.game import whole_number
from vime_envs.games.held_out import in_test_split


class GuessNumber(AgentEnv):
    """Seven guesses, enough for halving; 1 for the number. A reply without a number is a guess lost."""

    max_turns = 7

    def tasks(self) -> Iterable[Mapping[str, Any]]:
        """The numbers of this split, of which no other has one."""
        test = self.split == "test"
        rows = [{"number": number} for number in range(1, 101)]
        return [row for row in rows if in_test_split(row) == test]

    def prompt(self) -> str:  # noqa: D102
        return (
            f"I think of a whole number from 1 to 100. Find it in at most {self.max_turns} guesses. "
            "Answer with one guess at a time."
        )

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Higher, lower, or the end."""
        left = f"{self.max_turns - self.turn} guesses are left."
        try:
            guess = whole_number(message["content"], 1, 100)
        except IllegalMove as error:
            self.count("illegal_moves")
            return [user(f"That is no guess: {error}. {left}")]
        if guess == self.task["number"]:
            return None
        return [user(f"It is {'higher' if guess < self.task['number'] else 'lower'}. {left}")]

    def score(self, text: str) -> Mapping[str, float | tuple[float, float]]:
        """Whether the last guess is right; the number of guesses is a metric."""
        try:
            found = whole_number(text, 1, 100) == self.task["number"]
        except IllegalMove:
            found = False
        return {"found": float(found), "guesses": (float(self.turn), 0.0)}

    def gold(self) -> str:  # noqa: D102
        return str(self.task["number"])
