"""An environment whose agent works in a sandbox with ready tools, and is judged by tests it never sees.

```
class Doubles(vime.SandboxEnv):
    def tasks(self):
        return [{"name": "double"}]

    def prompt(self):
        return "Write solution.py with a function double(n), then submit."

    async def score(self, text):
        return (await self.grade_tests({"test_double.py": TESTS})).all_passed
```
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from vime_agents import registry
from vime_agents.env import ToolEnv
from vime_agents.errors import (
    ContractError,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxPermissionError,
)
from vime_agents.graded import decoded_artifacts, with_artifacts
from vime_agents.hidden_tests import HiddenTestReport, run_hidden_tests
from vime_agents.hidden_tests.grade import module_of
from vime_agents.messages import Message, assistant, tool_call
from vime_agents.sandbox import BoundedProvider, Sandbox, SandboxSpec
from vime_agents.tools import Tool, ToolHost, Toolset


def _ready(path: str) -> Callable[[ToolHost], Toolset]:
    """A toolset of a plug-in, imported when the first env is made."""
    return lambda host: registry.load_object(path, "toolset")(host)


class SandboxEnv(ToolEnv):
    """A `ToolEnv` with the tools `bash`, `view_file`, `write_file`, `edit_file` and `submit`.

    The sandbox is asked for by `sandbox_spec`, and made when a tool or hook first needs it.
    """

    max_turns: ClassVar[int] = 30
    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec()
    toolsets: ClassVar[Sequence[Tool | Callable[[ToolHost], Toolset]]] = (
        _ready("vime_tools.shell:Shell"),
        _ready("vime_tools.files:Files"),
        _ready("vime_tools.submit:Submit"),
    )
    artifacts: ClassVar[Sequence[str]] = ("solution.py",)
    """What the agent hands in: all of its work that `grade_tests` sees. Relative to the working directory."""
    max_artifact_bytes: ClassVar[int] = 1 << 20
    """A larger one counts as missing."""

    async def read_artifacts(self) -> dict[str, bytes]:
        """Those of `artifacts` that the agent made: regular files, not too large, that can be read."""
        if self._is_regraded and self.graded_record is not None and self.graded_record.artifacts is not None:
            return decoded_artifacts(self.graded_record.artifacts)
        read = {}
        if self.has_sandbox:  # else no tool was called
            box = await self.sandbox()
            found = {path: await self._read_artifact(box, path) for path in self.artifacts}
            read = {path: data for path, data in found.items() if data is not None}
        if self.graded_record is not None:
            self.graded_record = with_artifacts(self.graded_record, read)
        return read

    async def grade_tests(
        self, tests: Mapping[str, str], *, call_timeout_s: float = 5.0, timeout_s: float = 60.0
    ) -> HiddenTestReport:
        """Run Python tests against the agent's artifacts, in two fresh sandboxes; see `run_hidden_tests`.

        The episode's own sandbox ends first: nothing but the artifacts is left of what the agent did.
        Tests import the artifacts as modules and call their functions, with plain values; calls of an
        artifact that is missing fail. There must be room for two sandboxes at once.

        Args:
            tests: name -> text of files; those called test* hold functions called test*.
            call_timeout_s: of one call of the agent's code.
            timeout_s: of all of them.

        Raises:
            ContractError: no tests, or an artifact that is no Python module. GraderError: broken tests.
            SandboxError: infrastructure; SandboxUnsupported where there can never be room for two.
        """
        modules = [module_of(path) for path in self.artifacts]
        artifacts = await self.read_artifacts()
        await self.close_sandbox()
        async with self._two_sandboxes() as (judge, solution):
            for path, data in artifacts.items():
                await solution.write(path, data)
            return await run_hidden_tests(
                judge, solution, tests, modules=modules, call_timeout_s=call_timeout_s, timeout_s=timeout_s
            )

    def gold_files(self, files: Mapping[str, str], answer: str = "done") -> list[str | Message]:
        """For `gold`: the replies that write these files and submit."""
        calls = [
            tool_call("write_file", {"path": path, "content": text}, f"gold-{index}")
            for index, (path, text) in enumerate(files.items())
        ]
        return [assistant("", calls), assistant("", [tool_call("submit", {"answer": answer}, "gold-submit")])]

    async def _read_artifact(self, box: Sandbox, path: str) -> bytes | None:
        try:
            return await box.read(path, max_bytes=self.max_artifact_bytes)
        except (SandboxFileNotFound, SandboxPermissionError, SandboxOutputTooLarge):
            return None
        except SandboxError as error:  # a folder, a pipe, a loop of links: they have no class of their own
            if type(error) is not SandboxError or not await box.alive():
                raise
            return None

    @contextlib.asynccontextmanager
    async def _two_sandboxes(self) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
        if self.sandbox_spec is None:
            raise ContractError(f"{type(self).__name__} declares no `sandbox_spec`")
        files = {path: text for path, text in self.sandbox_spec.files.items() if path not in self.artifacts}
        spec, boxes = replace(self.sandbox_spec, files=files), list[Sandbox]()
        provider = self.sandboxes()
        if isinstance(provider, BoundedProvider):  # with room for one, the second would never come
            provider.check_room(spec, 2)
        async with contextlib.AsyncExitStack() as stack:
            # One grading's turn at a time: two that hold one each could wait for each other for ever.
            async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                for _ in range(2):
                    boxes.append(await provider.create(spec))
                    stack.push_async_callback(boxes[-1].close)
            yield boxes[0], boxes[1]


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
