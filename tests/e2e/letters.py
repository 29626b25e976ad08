"""An env for tests in which any random model earns varied rewards: the share of letters in what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vime_agents.env import AgentEnv


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
