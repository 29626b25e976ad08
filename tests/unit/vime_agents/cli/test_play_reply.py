"""Replies as a person writes them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents import messages as msg
from vime_agents.cli.play_reply import NotUnderstood, as_sampled, completions, format_reply, parse_reply
from vime_agents.tools import tool


@tool
def move(piece: str, row: int, column: float = 0.5, check: bool = False, note: str | None = None) -> str:
    """Move.

    Args:
        piece: which.
        row: where to.
        column: where to.
        check: whether it is one.
        note: about it.
    """
    return ""


@tool
def say(text: str) -> str:
    """Say.

    Args:
        text: what.
    """
    return ""


@tool
def look() -> str:
    """Look."""
    return ""


SCHEMAS = [move.schema, say.schema, look.schema]


def calls(text):
    """[(name, arguments)] of a reply."""
    return [
        (c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in parse_reply(text, SCHEMAS).get("tool_calls", ())
    ]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("/move piece=rook row=3", ("move", {"piece": "rook", "row": 3})),
        ("/move piece='the rook' row=-3", ("move", {"piece": "the rook", "row": -3})),
        ('/move row=3 piece="a=b"', ("move", {"row": 3, "piece": "a=b"})),
        (
            "/move piece=3 row=3 column=2 check=true",
            ("move", {"piece": "3", "row": 3, "column": 2, "check": True}),
        ),
        ("/move piece=x row=three check=maybe", ("move", {"piece": "x", "row": "three", "check": "maybe"})),
        ("/move piece=x row=1 note=null", ("move", {"piece": "x", "row": 1, "note": None})),
        ("/move piece=x row=1 note=5", ("move", {"piece": "x", "row": 1, "note": "5"})),
        ("/move piece=x row=1 note='\"null\"'", ("move", {"piece": "x", "row": 1, "note": "null"})),
        ('/move {"piece": "x"}', ("move", {"piece": "x"})),
        ("/say hello  there, it's me", ("say", {"text": "hello  there, it's me"})),
        ("/say x=1", ("say", {"text": "x=1"})),
        ("/say text='x = 1'", ("say", {"text": "x = 1"})),
        ("/say two\nlines\n", ("say", {"text": "two\nlines"})),
        ("/say //path is\n//path", ("say", {"text": "/path is\n/path"})),
        ("/look", ("look", {})),
    ],
)
def test_a_call_has_the_arguments_that_were_meant(text, call):
    assert calls(text) == [call]


def test_several_calls_and_the_text_before_them_are_one_message():
    reply = parse_reply("I look\nfirst.\n/look\n/say a\nb\n/look", SCHEMAS, turn=2)
    assert reply["content"] == "I look\nfirst."
    assert [c["function"]["name"] for c in reply["tool_calls"]] == ["look", "say", "look"]
    assert [c["id"] for c in reply["tool_calls"]] == ["call-2-0", "call-2-1", "call-2-2"]
    assert json.loads(reply["tool_calls"][1]["function"]["arguments"]) == {"text": "a\nb"}


def test_json_goes_to_the_tool_as_it_stands_also_when_it_is_broken():
    (call,) = parse_reply('/move {"piece": ', SCHEMAS)["tool_calls"]
    assert call["function"]["arguments"] == '{"piece":'


def test_text_is_kept_to_the_last_space():
    assert parse_reply("  a b \n", SCHEMAS) == msg.assistant("  a b \n")
    assert parse_reply("//usr/bin\nand //x", SCHEMAS) == msg.assistant("/usr/bin\nand //x")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/mvoe x", "no tool 'mvoe'. Did you mean /move?"),
        ("/", "no tool ''"),
        ("/move rook 3", "'rook' is no argument=value; the call is move(piece, row, column=, check=, note=)"),
        ("/move piece=x rwo=3", "takes no 'rwo'. Did you mean row=?"),
        ("/move piece=x", "move needs row"),
        ("/move piece=x row=1 row=2", "row= is given twice"),
        ("/move piece='x row=1", "move: no closing quotation"),
        ("/say", "say needs text"),
        ("/look x=1", "look takes no 'x'"),
    ],
)
def test_what_cannot_be_read_says_what_could(text, told):
    with pytest.raises(NotUnderstood, match=re.escape(told)):
        parse_reply(text, SCHEMAS)


texts = st.text(max_size=20) | st.sampled_from(["/x", "a\n/b", "null", "5", "{", "'", '"', "x=1", "\\", "\n"])


@given(
    content=texts,
    moves=st.lists(
        st.fixed_dictionaries(
            {"piece": texts, "row": st.integers() | texts},
            optional={"column": st.floats(allow_nan=False, allow_infinity=False), "note": texts | st.none()},
        ),
        max_size=2,
    ),
    said=st.lists(texts, max_size=2),
)
def test_a_reply_that_is_shown_can_be_typed(content, moves, said):
    meant = [*(("move", arguments) for arguments in moves), *(("say", {"text": text}) for text in said)]
    made = [msg.tool_call(name, arguments, f"call-0-{i}") for i, (name, arguments) in enumerate(meant)]
    reply = msg.assistant(content, made)
    back = parse_reply(format_reply(reply, SCHEMAS), SCHEMAS)
    assert back["content"] == content
    assert calls(format_reply(reply, SCHEMAS)) == meant


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("say", {"text": "grep 'a b' | wc > x"}, "/say grep 'a b' | wc > x"),
        ("say", {"text": " x"}, "/say text=' x'"),
        ("say", {"text": "text=1"}, "/say text=text=1"),
        ("say", {"text": ""}, "/say text=''"),
        ("say", {"text": "{}"}, "/say text='{}'"),
        ("move", {"piece": 'it\'s "x"', "row": 1}, '/move piece="it\'s \\"x\\"" row=1'),
        ("move", {"piece": "a b", "row": "1"}, '/move {"piece": "a b", "row": "1"}'),
        ("look", {}, "/look"),
    ],
)
def test_a_call_is_shown_as_plainly_as_it_can_be_typed(name, arguments, shown):
    assert format_reply(msg.assistant("", [msg.tool_call(name, arguments, "1")]), SCHEMAS) == shown


def test_calls_that_no_tool_can_take_are_shown_raw():
    bad = [msg.tool_call("nope", {"a": 1}, "1"), msg.tool_call("move", "{oops", "2")]
    assert format_reply(msg.assistant("x", bad), SCHEMAS) == 'x\n/nope {"a": 1}\n/move {oops'


@pytest.mark.parametrize(
    ("text", "stop", "sampled"),
    [
        ("get(a) b", (")",), "get(a)"),
        ("4", ("\n",), "4\n"),
        ("4\n5", ("\n",), "4\n"),
        ("abcd", ("cd", "b"), "ab"),
        ("abcd", ("x",), "abcd"),
        ("abcd", (), "abcd"),
    ],
)
def test_a_reply_ends_where_an_engine_would_have_ended_it(text, stop, sampled):
    assert as_sampled(text, stop) == sampled


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("/", ["/move ", "/say ", "/look ", "/help ", "/quit "]),
        ("/l", ["/look "]),
        ("/move ", ["piece=", "row=", "column=", "check=", "note="]),
        ("/move piece=a c", ["column=", "check="]),
        ("/move check=", ["check=true ", "check=false "]),
        ("/move check=f", ["check=false "]),
        ("/move note=", ["note=null "]),
        ("/move row=", []),
        ("/nope ", []),
        ("some text", []),
        ("", []),
    ],
)
def test_tab_offers_tools_parameters_and_values(line, offered):
    assert completions(line, SCHEMAS, ["help", "quit"]) == offered
