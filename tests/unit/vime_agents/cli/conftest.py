"""An environment in a module of its own, as an author's would be."""

import sys

import pytest

SOURCE = '''
import vime_agents as vime
from vime_agents import messages as msg


class Sum(vime.ToolEnv):
    """Adds with a tool.

    Longer text.
    """

    max_turns = 3

    def make_task(self, rng):
        return {"a": int(rng.integers(0, 9)), "b": 1}

    def prompt(self):
        return f"{self.task['a']} + {self.task['b']} = ?"

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        return str(a + b)

    def score(self, text):
        return float(text == str(self.task["a"] + self.task["b"]))

    def gold(self):
        call = msg.tool_call("add", self.task, "call-1")
        return [msg.assistant("", [call]), str(self.task["a"] + self.task["b"])]


class Broken(Sum):
    """Its tool never works."""

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Fail.

        Args:
            a: one.
            b: the other.
        """
        raise vime.EnvFault("the adding machine is on fire")


class Loop(Sum):
    """Its gold replies never end it."""

    def gold(self):
        return [msg.assistant("", [msg.tool_call("add", self.task, "call-1")])] * 3


class OnlyTest(Sum):
    """Has no training tasks."""

    def tasks(self):
        return [{"a": 1, "b": 1}] if self.split == "test" else []
'''


@pytest.fixture(autouse=True)
def cli_envs(tmp_path, monkeypatch):
    """`cli_envs:Sum`, `cli_envs:Broken`, `cli_envs:Loop`, `cli_envs:OnlyTest`."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "cli_envs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield
    sys.modules.pop("cli_envs", None)
