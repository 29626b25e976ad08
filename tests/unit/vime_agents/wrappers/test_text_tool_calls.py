"""Tool calls in text, in every style."""

from __future__ import annotations

import json

import pytest

import vime_agents as vime
from vime_agents.env import AgentEnv, ToolEnv
from vime_agents.errors import ConfigError
from vime_agents.messages import assistant, system, tool_call, user
from vime_agents.wrappers import FewShot, TextToolCalls
from vime_agents.wrappers.call_styles import CALL_STYLES, ReadCall, read_calls, written


class Bench(ToolEnv):
    """Two tools; one takes text alone."""

    max_turns = 4

    def make_task(self, rng):
        return {}

    def prompt(self):
        return [system("Be brief."), user("go")]

    @vime.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        return str(a + b)

    @vime.tool
    def shout(self, text: str) -> str:
        """Say it louder.

        Args:
            text: what.
        """
        return text.upper()

    def score(self, text):
        return float(text == "5")


SCHEMAS = Bench().tool_schemas
ADD = '{"name": "add", "arguments": {"a": 2, "b": 3}}'


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        ("xml", f"I add. <tool_call>\n{ADD}\n</tool_call>", [("add", {"a": 2, "b": 3})]),
        (
            "xml",
            f"<tool_call>{ADD}</tool_call> and <tool_call>{ADD}</tool_call>",
            [("add", {"a": 2, "b": 3})] * 2,
        ),
        ("xml", f"<tool_call>{ADD}", [("add", {"a": 2, "b": 3})]),  # a stop string took the end
        ("xml", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [("add", {"a": 1})]),
        ("xml", '<tool_call>{"name": "now"}</tool_call>', [("now", {})]),
        ("xml", ADD, []),
        ("json", ADD, [("add", {"a": 2, "b": 3})]),
        ("json", f"```json\n{ADD}\n```", [("add", {"a": 2, "b": 3})]),
        ("json", f"[{ADD}, {ADD}]", [("add", {"a": 2, "b": 3})] * 2),
        ("json", f"I add: {ADD}", []),
        ("json", '{"answer": 5}', []),
        ("json", "5", []),
        ("json", "[1, 2]", []),
        ("fenced", '```add\n{"a": 2, "b": 3}\n```', [("add", {"a": 2, "b": 3})]),
        ("fenced", "First:\n```shout\nhello\n  you\n```\nthen", [("shout", {"text": "hello\n  you"})]),
        ("fenced", '```shout\n{"text": "a"}\n```', [("shout", {"text": "a"})]),
        ("fenced", "```shout\nhello", [("shout", {"text": "hello"})]),
        ("fenced", "```python\nprint(1)\n```", []),
        ("fenced", "```\nplain\n```", []),
    ],
)
def test_calls_are_read(style, text, expected):
    read = read_calls(text, SCHEMAS, style)
    assert [(call.name, json.loads(call.arguments), call.problem) for call in read] == [
        (name, arguments, "") for name, arguments in expected
    ]


@pytest.mark.parametrize(
    ("style", "text", "problem"),
    [
        ("xml", '<tool_call>{"name": "add", </tool_call>', "it is not valid JSON"),
        ("xml", "<tool_call></tool_call>", "it is not valid JSON"),
        ("xml", '<tool_call>{"arguments": {}}</tool_call>', 'it has no "name"'),
        ("xml", "<tool_call>[1]</tool_call>", 'it has no "name"'),
        ("json", '{"name": "add", "arguments": {', "it is not valid JSON"),
        ("json", f'[{ADD}, {{"name": 3, "arguments": {{}}}}]', 'it has no "name"'),
    ],
)
def test_what_was_meant_as_a_call_is_not_taken_for_an_answer(style, text, problem):
    assert read_calls(text, SCHEMAS, style)[-1].problem == problem


@pytest.mark.parametrize("style", CALL_STYLES)
@pytest.mark.parametrize(
    "call",
    [
        tool_call("add", {"a": 2, "b": -3}, "x"),
        tool_call("shout", {"text": 'two\nlines of {"json": 1}'}, "x"),
    ],
    ids=["json", "text"],
)
def test_what_is_written_is_read_back(style, call):
    read = read_calls(written(call, SCHEMAS, style), SCHEMAS, style)
    (only,) = read
    assert only.name == call["function"]["name"]
    assert json.loads(only.arguments) == json.loads(call["function"]["arguments"])


@pytest.mark.timeout(30)
@pytest.mark.parametrize("style", CALL_STYLES)
@pytest.mark.parametrize(
    "text",
    ["<tool_call>" * 200_000, "```shout\n" * 200_000, "[" * 500_000, "{" * 500_000, "```" + "`" * 500_000],
    ids=["open tags", "open fences", "brackets", "braces", "backticks"],
)
def test_a_hostile_reply_is_read_in_linear_time(style, text):
    assert len(read_calls(text, SCHEMAS, style)) <= 200_000  # in quadratic time it would not come to an end


def test_a_read_call_is_a_record():
    assert ReadCall("add", "{}") == ReadCall("add", "{}", "")


@pytest.mark.parametrize("style", CALL_STYLES)
async def test_an_episode_in_text(style):
    env = TextToolCalls(Bench(), style=style)
    observation, _ = await env.areset(seed=0)
    first, second = observation["messages"]
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\nYou can call tools.")
    assert "add: Add two numbers." in first["content"]
    assert '"b"' in first["content"]
    assert second == user("go")
    assert env.tool_schemas == []
    call = written(tool_call("add", {"a": 2, "b": 3}, "x"), SCHEMAS, style)
    observation, _, terminated, _, _ = await env.astep(call)
    assert observation["messages"] == (user("Answer of add:\n5"),)
    assert not terminated
    _, reward, terminated, _, _ = await env.astep("5")
    assert (reward, terminated) == (1.0, True)
    assert env.counters == {"tool_calls": 1}
    await env.aclose()


async def test_two_calls_are_answered_in_one_message_and_a_broken_one_with_how_it_is_done():
    env = TextToolCalls(Bench())
    await env.areset(seed=0)
    observation, *_ = await env.astep(f"<tool_call>{ADD}</tool_call><tool_call>oops</tool_call>")
    (message,) = observation["messages"]
    assert message["role"] == "user"
    ok, broken = message["content"].split("\n\n")
    assert ok == "Answer of add:\n5"
    assert broken.startswith(
        "Error: that was no tool call: it is not valid JSON. To call one, write <tool_call>"
    )
    assert env.counters == {"tool_calls": 2, "tool_errors": 1, "unreadable_calls": 1}
    await env.aclose()


async def test_examples_with_native_calls_are_shown_as_text():
    examples = [user("q"), assistant("Hm.", [tool_call("shout", {"text": "a"}, "x")])]
    env = TextToolCalls(FewShot(Bench(), examples=examples), style="fenced")
    observation, _ = await env.areset(seed=0)
    assert observation["messages"][2] == assistant("Hm.\n```shout\na\n```")
    await env.aclose()


async def test_without_tools_there_is_nothing_to_describe():
    class Plain(AgentEnv):
        def make_task(self, rng):
            return {}

        def prompt(self):
            return "go"

    with pytest.raises(ConfigError, match="has no tools"):
        await TextToolCalls(Plain()).areset(seed=0)
