"""Coding-v0: write or repair a Python module in a sandbox; hidden tests judge it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from vime_agents.messages import Message, assistant, tool_call
from vime_agents.sandbox import SandboxSpec
from vime_agents.sandbox_env import SandboxEnv

TEST_TASKS = ("csv_line", "first_index", "recently_used", "task_order")
"""What is never trained on; the others are."""
_BLOCK = re.compile(r"^## (\w+)\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Coding(SandboxEnv):
    """Write solution.py; the reward is 1 when every hidden test passes. `fraction` is a metric."""

    max_turns = 20
    sandbox_spec = SandboxSpec(memory_mb=256, max_processes=32, max_file_mb=8)

    def tasks(self) -> list[dict[str, str]]:  # noqa: D102
        return [task for task in _all_tasks() if (task["id"] in TEST_TASKS) == (self.split == "test")]

    async def setup(self) -> None:
        """The file to repair, where there is one."""
        if "start" in self.task:
            await (await self.sandbox()).write("solution.py", self.task["start"].encode())

    def prompt(self) -> str:  # noqa: D102
        return (
            f"{self.task['prompt']}\n\nYour work is the file solution.py in the working directory, in Python "
            "and without other packages. Try it, then submit. Tests that you do not see will import it and "
            "call "
            "its functions."
        )

    async def score(self, text: str) -> Mapping[str, float | tuple[float, float]]:  # noqa: D102
        report = await self.grade_tests({"test_solution.py": self.task["tests"]}, timeout_s=30.0)
        return {"passed": float(report.all_passed), "fraction": (report.fraction, 0.0)}

    def gold(self) -> list[str | Message]:  # noqa: D102
        write, submit = self.gold_files({"solution.py": self.task["solution"]})
        if "start" not in self.task:
            return [write, submit]
        repair = {"path": "solution.py", "old": self.task["start"], "new": self.task["solution"]}
        return [
            assistant("", [tool_call("view_file", {"path": "solution.py"}, "gold-view")]),
            assistant("", [tool_call("edit_file", repair, "gold-edit")]),
            assistant("", [tool_call("bash", {"command": "python3 -c 'import solution'"}, "gold-try")]),
            submit,
        ]


@cache
def _all_tasks() -> list[dict[str, Any]]:
    """Of the files in `coding_tasks`: text, and blocks of Python with a heading each. Repairs come first."""
    found = []
    for file in sorted(files("vime_envs").joinpath("coding_tasks").iterdir(), key=lambda f: f.name):
        text = file.read_text(encoding="utf-8")
        blocks = {name.lower(): code for name, code in _BLOCK.findall(text)}
        prompt = " ".join(text.partition("\n## ")[0].split())
        found.append({"id": file.name.removesuffix(".md"), "prompt": prompt, **blocks})
    return sorted(found, key=lambda task: "start" not in task)
