"""A module that is not quiet when it is imported."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from vime_agents.env import AgentEnv

print("loading tables")  # noqa: T201 - the fault
logging.getLogger().setLevel(logging.DEBUG)


class Loud(AgentEnv):
    """Of the gallery, in a module of its own."""

    def make_task(self, rng: np.random.Generator) -> Any:
        return {"number": int(rng.integers(10**9))}

    def prompt(self) -> Any:
        return f"Say {self.task['number']} backwards."

    def score(self, text: str) -> Any:
        return float(text.strip() == str(self.task["number"])[::-1])

    def gold(self) -> Any:
        return str(self.task["number"])[::-1]
