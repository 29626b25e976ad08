"""A calculator whose work is done in the episode's sandbox, never in our process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol

from vime_agents.errors import ToolError
from vime_agents.sandbox import Sandbox
from vime_agents.tools import tool
from vime_tools import arithmetic


class HasSandbox(Protocol):
    """What `CalculatorTools` needs from the class that it is mixed into; every `AgentEnv` has it."""

    calculator_timeout_s: ClassVar[float]

    async def sandbox(self) -> Sandbox:
        """The episode's sandbox."""
        ...


class CalculatorTools:
    """Mix into a `ToolEnv` that declares a `sandbox_spec`: gives the tool `calculator`."""

    calculator_timeout_s: ClassVar[float] = 5.0

    @tool
    async def calculator(self: HasSandbox, expression: str) -> str:
        """Evaluate an arithmetic expression exactly.

        Args:
            expression: numbers, parentheses and the operators + - * / // % **, for example (12 + 3) * 4.
        """
        if len(expression) > arithmetic.MAX_CHARACTERS:  # need not travel
            raise ToolError(
                f"the expression has {len(expression)} characters, at most {arithmetic.MAX_CHARACTERS}"
            )
        box = await self.sandbox()
        result = await box.exec(
            ["python3", "-IS", "-c", _program()],
            stdin=expression.encode("utf-8", "replace"),
            timeout_s=self.calculator_timeout_s,
            max_output=1 << 14,
        )
        if result.exit_code == arithmetic.BAD_EXPRESSION:
            raise ToolError(result.stderr.decode("utf-8", "replace"))
        if result.timed_out:
            raise ToolError(f"the expression took longer than {self.calculator_timeout_s:g} s")
        if not result.ok:
            reason = result.stderr.decode("utf-8", "replace")[-500:] or f"signal {result.signal}"
            raise ToolError(f"the calculator failed: {reason}")
        return result.text


@cache
def _program() -> str:
    return Path(arithmetic.__file__).read_text(encoding="utf-8")
