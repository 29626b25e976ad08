"""Components that run in processes of their own; they are found by name there."""

from __future__ import annotations

import os

from vime_agents.errors import Unscorable
from vime_agents.grading import GraderLimits
from vime_agents.reward import reward


@reward(process=True)
def exact(text: str, answer: str) -> float:
    return float(text == answer)


@reward(process=GraderLimits(timeout_s=0.2), weight=0.5)
def hangs() -> float:
    while True:
        pass


@reward(process=True, range=(0, 1e9), weight=0)
def pid() -> int:
    return os.getpid()


@reward(process=True)
def no_key() -> float:
    raise Unscorable("no key")
