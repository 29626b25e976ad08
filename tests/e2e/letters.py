"""Envs for tests in which any random model earns varied rewards: the share of letters in what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vime_agents.env import AgentEnv
from vime_agents.multi_agent.game import Game


class Letters(AgentEnv):
    """One turn of text; the more letters the better."""

    prompt_style = "text"

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Some letters to go on from."""
        return {"start": "".join(chr(97 + int(i)) for i in rng.integers(0, 26, 6))}

    def prompt(self) -> str:
        """The task's letters."""
        return self.task["start"]

    def score(self, text: str) -> float:
        """Letters per character."""
        return sum(c.isalpha() for c in text) / max(len(text), 1)


class LetterDuel(Game):
    """Both say something at the same time; who has the larger share of letters gets the difference."""

    prompt_style = "text"
    possible_agents = ("first", "second")
    zero_sum = True

    def start(self, rng: np.random.Generator) -> list[str]:
        """Some letters to go on from, and both go on."""
        self.letters = "".join(chr(97 + int(i)) for i in rng.integers(0, 26, 6))
        return ["first", "second"]

    def view(self, me: str) -> str:
        """Those letters."""
        return self.letters

    def parse(self, me: str, text: str) -> float:
        """Letters per character."""
        return sum(c.isalpha() for c in text) / max(len(text), 1)

    def moves(self, moves: Mapping[str, Any]) -> dict[str, float]:
        """How far each is ahead of the other."""
        ahead = moves["first"] - moves["second"]
        return {"first": ahead, "second": -ahead}
