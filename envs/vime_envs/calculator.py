"""Calculator-v0: arithmetic too long for the head, and a calculator that runs in a sandbox."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vime_agents.env import ToolEnv
from vime_agents.messages import Message, assistant, tool_call
from vime_agents.sandbox import SandboxSpec
from vime_tools.calculator import CalculatorTools


class Calculator(CalculatorTools, ToolEnv):
    """One question; the reward is 1 when the last number of the final reply is exactly right."""

    max_turns = 8
    sandbox_spec = SandboxSpec(memory_mb=128, max_processes=32, max_file_mb=1)

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:  # noqa: D102
        a, b, c = (int(n) for n in rng.integers(100, 1000, 3))
        return {"expression": f"{a} * {b} + {c}", "answer": a * b + c}

    def prompt(self) -> str:  # noqa: D102
        return f"What is {self.task['expression']}? Use the calculator. End your reply with the number."

    def score(self, text: str) -> float:  # noqa: D102
        numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
        return float(bool(numbers) and numbers[-1].replace(",", "") == str(self.task["answer"]))

    def gold(self) -> list[str | Message]:  # noqa: D102
        call = tool_call("calculator", {"expression": self.task["expression"]}, "gold")
        return [assistant("", [call]), f"The result is {self.task['answer']}"]
