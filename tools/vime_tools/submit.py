"""The answer of an episode, given by a call instead of a last message."""

from __future__ import annotations

from vime_agents.errors import ToolError
from vime_agents.tools import ToolHost, Toolset, tool


class Submit(Toolset):
    """Gives the tool `submit`: it ends the episode, and `score` gets what was submitted."""

    def __init__(self, host: ToolHost) -> None:
        super().__init__(host)
        self._submitted = False

    @tool
    async def submit(self, answer: str) -> str:
        """Give the final answer. Nothing can be done after it.

        Args:
            answer: the answer itself, without explanation.
        """
        if self._submitted:  # two calls in one message
            raise ToolError("an answer has been submitted already; that one counts")
        self._submitted = True
        self.host.finish(answer)
        return "Submitted."
