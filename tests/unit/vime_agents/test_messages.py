from __future__ import annotations

import json

import pytest

from vime_agents.errors import ContractError
from vime_agents.messages import (
    assistant,
    check_message,
    is_message,
    last_text,
    system,
    tool_call,
    tool_result,
    user,
)

CALL = tool_call("get", {"key": "é"}, "c1")


@pytest.mark.parametrize(
    "message",
    [system("s"), user(""), assistant("a\0\ud800"), assistant("", [CALL]), tool_result("4", CALL)],
)
def test_what_the_constructors_make_is_valid_json_and_passes_unchanged(message) -> None:
    assert check_message(message) is message
    assert is_message(message)
    assert json.loads(json.dumps(message)) == message


def test_the_shape_is_openais() -> None:
    assert assistant("", [CALL]) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get", "arguments": '{"key": "\\u00e9"}'},
            }
        ],
    }
    assert tool_result("4", CALL) == {
        "role": "tool",
        "content": "4",
        "tool_call_id": "c1",
        "name": "get",
    }
    assert "tool_calls" not in assistant("x")


def test_arguments_that_a_model_wrote_are_kept_to_the_letter() -> None:
    assert tool_call("f", '{"a":1', "x")["function"]["arguments"] == '{"a":1'


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (None, "a message is a dict, got NoneType"),
        ("text", "a message is a dict, got str"),
        ({}, "role must be one of"),
        ({"role": "robot", "content": ""}, "got 'robot'"),
        ({"role": ["user"], "content": ""}, "role must be one of"),
        ({"role": "user"}, "content must be a str, got None"),
        ({"role": "user", "content": [{"type": "text"}]}, "content must be a str"),
        ({"role": "user", "content": b"x"}, "content must be a str"),
        ({"role": "assistant", "content": "", "tool_calls": {}}, "tool_calls must be a list"),
        ({"role": "assistant", "content": "", "tool_calls": [3]}, "not a tool call: 3"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, "not a tool call"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": 1, "function": CALL["function"]}]},
            "not a tool call",
        ),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}],
            },
            "not a tool call",
        ),
        ({"role": "user", "content": "", "tool_calls": [CALL]}, "only assistant messages carry tool_calls"),
    ],
)
def test_what_is_wrong_is_named(message, problem: str) -> None:
    with pytest.raises(ContractError, match=problem):
        check_message(message)
    assert not is_message(message)


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(ContractError) as caught:
        check_message({"role": "user", "content": ["x" * 100_000]})
    assert len(str(caught.value)) < 500


def test_last_text_is_the_agents_last_word() -> None:
    assert last_text([user("q"), assistant("first"), user("more"), assistant("last"), user("bye")]) == "last"
    assert last_text([assistant("", [CALL]), tool_result("4", CALL)]) == ""
    assert last_text([user("q")]) == ""
    assert last_text([]) == ""
