"""A shell in the episode's sandbox: its working directory, variables and functions stay from call to call."""

from __future__ import annotations

import shlex
from typing import ClassVar

from vime_agents.tools import ToolHost, Toolset, tool
from vime_tools.model_text import without_nul
from vime_tools.session import Session, told

_COMMAND = ("sh", "-c", "command -v bash >/dev/null && exec bash --noprofile --norc; exec sh")


class Shell(Toolset):
    """Gives the tool `bash`. Metrics: `bash_timeouts`."""

    timeout_s: ClassVar[float] = 20.0
    """Of one command. Keep it below the env's `tool_timeout_s`, which would lose the command's output."""

    def __init__(self, host: ToolHost) -> None:
        super().__init__(host)
        self._directory = ""
        self._session = Session(host.sandbox, _COMMAND, prelude=self._prelude)

    @tool
    async def bash(self, command: str) -> str:
        """Run a command in a shell, and read what it prints.

        The shell stays: a `cd`, variables and functions hold for the next call. Standard input is empty.

        Args:
            command: one line or many, for example: cd src && ls
        """
        without_nul(command, "command")
        answer = await self._session.run(lambda marker: _request(command, marker), timeout_s=self.timeout_s)
        status, _, directory = answer.status.partition(" ")
        self._directory = directory or self._directory
        if answer.timed_out:
            self.host.count("bash_timeouts")
        state = "variables, functions and programs"
        text = told(answer, program="shell", request="command", timeout_s=self.timeout_s, state=state)
        return text if status in ("", "0") else f"{text}\n[exit status {status}]"

    async def close(self) -> None:
        """End the shell and all that it started."""
        await self._session.aclose()

    def _prelude(self) -> bytes:
        # Behind `exec >file` in a command, the markers must still arrive.
        prelude = "exec 2>&1 9>&1\n"
        if self._directory:
            prelude += f"cd {shlex.quote(self._directory)} 2>/dev/null\n"
        return prelude.encode()


def _request(command: str, marker: str) -> bytes:
    return (
        f'eval {shlex.quote(command)} </dev/null\nprintf \'\\n%s %s %s\\n\' {marker} "$?" "$PWD" >&9\n'
    ).encode()
