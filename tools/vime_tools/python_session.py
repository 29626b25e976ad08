"""Python in the episode's sandbox: variables, imports and functions stay from call to call."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import ClassVar

from vime_agents.tools import ToolHost, Toolset, tool
from vime_tools import python_program
from vime_tools.session import Session, told


class PythonSession(Toolset):
    """Gives the tool `python`. Needs `python3` in the sandbox. Metrics: `python_timeouts`."""

    timeout_s: ClassVar[float] = 20.0
    """Of one call. Keep it below the env's `tool_timeout_s`, which would lose the call's output."""

    def __init__(self, host: ToolHost) -> None:
        super().__init__(host)
        command = ("python3", "-u", "-c", _program())
        self._session = Session(host.sandbox, command, interruptible=True)

    @tool
    async def python(self, code: str) -> str:
        """Run Python code, and read what it prints and the value of a last expression.

        The session stays: variables, imports and functions hold for the next call.

        Args:
            code: one line or many, for example: import math; math.factorial(20)
        """

        def request(marker: str) -> bytes:
            return json.dumps({"code": code, "marker": marker}).encode("ascii") + b"\n"

        answer = await self._session.run(request, timeout_s=self.timeout_s)
        if answer.timed_out:
            self.host.count("python_timeouts")
        return told(
            answer, program="Python session", request="code", timeout_s=self.timeout_s, state="variables"
        )

    async def close(self) -> None:
        """End the session and all that it started."""
        await self._session.aclose()


@cache
def _program() -> str:
    return Path(python_program.__file__).read_text(encoding="utf-8")
