"""What toolsets need of an environment, and no more."""

from __future__ import annotations

from collections import Counter

from vime_agents.sandbox import Sandbox
from vime_agents.tools import Toolset, run_off_loop


class Host:
    """One episode."""

    def __init__(self, box: Sandbox | None = None) -> None:
        self.box = box
        self.counters: Counter[str] = Counter()
        self.answers: list[str] = []

    async def sandbox(self) -> Sandbox:
        assert self.box is not None
        return self.box

    def count(self, name: str, amount: float = 1) -> None:
        self.counters[name] += int(amount)

    def finish(self, answer: str) -> None:
        self.answers.append(answer)


async def call(toolset: Toolset, name: str, arguments: str) -> str:
    """Call a tool as a model does, on JSON text."""
    return await toolset.tools[name].call(arguments, run_off_loop)
