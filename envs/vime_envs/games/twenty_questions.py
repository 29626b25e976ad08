"""TwentyQuestions-v0: one asks, another, who knows the answer, says yes or no."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vime_agents.episode import RewardResult
from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game
from vime_agents.multi_agent.game import one_of
from vime_agents.reward import Score

QUESTIONS: tuple[str, ...] = (
    "Is it alive?",
    "Is it bigger than a car?",
    "Can one eat it?",
    "Can it fly?",
    "Is it usually found indoors?",
    "Does it use electricity?",
    "Does it live or lie in water?",
    "Is it made of wood, or does it grow on or as a plant?",
)
"""Questions to which the table knows the answers: for players without a model."""
_TABLE = """
    elephant yynnnnnn  eagle ynnynnnn      trout ynynnnyn     carrot ynynnnny    whale yynnnnyn
    oak yynnnnny       cat ynnnynnn        bee ynnynnny       airplane nynynynn  submarine nynnnyyn
    television nnnnyynn  piano nnnnynny    bread nnynynnn     kite nnnynnnn      bicycle nnnnnnnn
    castle nynnnnnn    anchor nnnnnnyn     drone nnnynynn     teapot nnynynyn    barn nynnnnny
"""
ANSWERS: Mapping[str, str] = dict(zip(*[iter(_TABLE.split())] * 2, strict=True))
"""Thing -> y or n for each of QUESTIONS."""
THINGS = tuple(ANSWERS)
_EVERY = 5
"""One thing in so many belongs to the test split."""
_GUESS = re.compile(r"\bGUESS\s*:\s*(.{1,100})", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:an?|the)\s+")
_SHOWN = 300
"""Characters of a question that the answerer reads."""
_SAYS = ("yes", "no", "sometimes")


class TwentyQuestions(Game):
    """The guesser has 1 if it names the thing within twenty turns; so has the answerer, who says yes or no.

    The answerer is any policy, usually a frozen model: `--agents answerer=MODEL`. When it gives no answer
    that can be used, the guesser has no reward: that is no evidence of how well it asks.
    """

    possible_agents = ("guesser", "answerer")
    reward_range = (0.0, 1.0)
    num_questions = 20
    max_turns = 2 * num_questions + 2  # one retry each

    def tasks(self) -> Sequence[Mapping[str, Any]]:
        """The things of this split."""
        test = self.split == "test"
        return [{"thing": thing} for i, thing in enumerate(THINGS) if (i % _EVERY == 0) == test]

    def start(self, rng: np.random.Generator) -> str:
        """Nothing was asked."""
        self.num_asked, self.question, self.answer = 0, "", ""
        return "guesser"

    def rules(self, me: str) -> str:
        """Who does what; the thing, to the answerer alone."""
        if me == "answerer":
            return (
                f"Another player is to find out what you think of, by at most {self.num_questions} questions."
                f" You think of: {self.task['thing']}. Answer each question truthfully, with one word: "
                f"{', '.join(_SAYS[:-1])} or {_SAYS[-1]}. Nothing else that you write is passed on."
            )
        return (
            f"I think of a thing. Find out what it is: you may ask {self.num_questions} times, one question "
            "a reply, to be answered by yes, no or sometimes. A guess counts as a question; write it as\n"
            "GUESS: the thing"
        )

    def view(self, me: str) -> str:
        """The question, or the answer to the last one."""
        if me == "answerer":
            return f"The question:\n{self.question}\n\nYour answer?"
        left = self.num_questions - self.num_asked
        return f"{self.answer}{left} question{'s are' if left > 1 else ' is'} left."

    def parse(self, me: str, text: str) -> str:
        """A question or guess; a yes or no."""
        if me == "answerer":
            return one_of(text, _SAYS)
        if not text.strip():
            raise IllegalMove("ask something, or write GUESS: and a thing")
        return text.strip()

    def move(self, me: str, text: str) -> str | Mapping[str, Score]:
        """Ask, guess or answer."""
        if me == "guesser":
            self.num_asked += 1
            guesses = _GUESS.findall(text[-10_000:])
            if not guesses:
                self.question = text[-_SHOWN:]
                return "answerer"
            if _plain(guesses[-1]) == self.task["thing"]:
                return self._scores(found=True)
            self.answer = "No, that is not it. "
        else:
            self.answer = f"{text.capitalize()}. "
        return "guesser" if self.num_asked < self.num_questions else self._scores(found=False)

    def forfeit(self, agents: Sequence[str]) -> Mapping[str, Score | RewardResult]:
        """Whoever does not go on has nothing; what the other is worth cannot be told."""
        unknown = RewardResult(value=None, status="unscorable", detail=f"{agents[0]} did not go on")
        return {agent: 0.0 if agent in agents else unknown for agent in self.agents}

    def legal(self, me: str) -> Sequence[str]:
        """The table's questions and a guess; the answers."""
        return _SAYS if me == "answerer" else (*QUESTIONS, *(f"GUESS: {thing}" for thing in THINGS))

    def secrets(self, me: str) -> Sequence[str]:
        """The thing, to the answerer."""
        return [self.task["thing"]] if me == "answerer" else []

    def gold(self, me: str) -> str:
        """The thing itself; the true answer to a question of the table, and no to any other."""
        if me == "guesser":
            return f"GUESS: {self.task['thing']}"
        known = dict(zip(QUESTIONS, ANSWERS[self.task["thing"]], strict=True))
        return "yes" if known.get(self.question) == "y" else "no"

    def _scores(self, *, found: bool) -> Mapping[str, Score]:
        asked = (float(self.num_asked), 0.0)
        return {agent: {"found": float(found), "questions": asked} for agent in self.agents}


def _plain(guess: str) -> str:
    return _ARTICLE.sub("", guess.strip().strip(".!?*\"'` ").lower())
