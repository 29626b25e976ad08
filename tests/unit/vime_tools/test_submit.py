from __future__ import annotations

import pytest

from tests.unit.vime_tools.hosts import Host, call
from vime_agents.env import ToolEnv
from vime_agents.errors import ToolError
from vime_agents.messages import assistant, tool_call
from vime_tools.submit import Submit


class Sum(ToolEnv):
    toolsets = (Submit,)

    def tasks(self):
        return [{"answer": "42"}]

    def prompt(self):
        return "6 * 7?"

    def score(self, text):
        return float(text == self.task["answer"])


@pytest.mark.parametrize(
    ("answers", "reward"), [(["42"], 1.0), (["41"], 0.0), (["41", "42"], 0.0), ([""], 0.0)]
)
async def test_the_first_answer_ends_the_episode(answers: list[str], reward: float) -> None:
    env = Sum()
    for _ in range(2):  # the second episode may answer again
        await env.areset(seed=0)
        calls = [tool_call("submit", {"answer": a}, str(i)) for i, a in enumerate(answers)]
        observation, scored, terminated, _, info = await env.astep(assistant("42", calls))
        assert (scored, terminated, info["stop"]) == (reward, True, "done")
        contents = [m["content"] for m in observation["messages"]]
        assert contents[0] == "Submitted."
        assert all("that one counts" in c for c in contents[1:])


async def test_bad_arguments_submit_nothing() -> None:
    host = Host()
    submit = Submit(host)
    for arguments in ("{}", '{"answer": 42}', '{"answer": "42", "x": 1}', "42"):
        with pytest.raises(ToolError):
            await call(submit, "submit", arguments)
    assert host.answers == []
    await call(submit, "submit", '{"answer": "\\ud800\\u0000"}')
    assert host.answers == ["\ud800\0"]
