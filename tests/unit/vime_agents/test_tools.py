from __future__ import annotations

import enum
import functools
import json
from typing import Annotated, Literal

import pydantic
import pytest

from vime_agents.errors import ContractError, ToolError
from vime_agents.tools import (
    BoundTool,
    CallableTool,
    Tool,
    cut_output,
    repaired_arguments,
    run_off_loop,
    tool,
    tools_of,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@tool
def search(query: str, limit: int = 10, kind: Literal["web", "news"] = "web") -> str:
    """Search for documents.

    Longer explanation.

    Args:
        query (str): what to look for,
            in plain words.
        limit: at most so many: a number.
        kind: where.

    Returns:
        text: nothing that the model reads here.
    """
    return f"{query}/{limit}/{kind}"


def test_schema_is_what_openai_expects() -> None:
    assert search.schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search for documents.\n\nLonger explanation.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "query": {
                        "type": "string",
                        "title": "Query",
                        "description": "what to look for, in plain words.",
                    },
                    "limit": {
                        "type": "integer",
                        "title": "Limit",
                        "default": 10,
                        "description": "at most so many: a number.",
                    },
                    "kind": {
                        "type": "string",
                        "title": "Kind",
                        "default": "web",
                        "enum": ["web", "news"],
                        "description": "where.",
                    },
                },
                "required": ["query"],
            },
        },
    }
    json.dumps(search.schema)


def test_a_tool_is_still_a_function() -> None:
    assert search("a", limit=2) == "a/2/web"
    assert search.__name__ == "search"


@pytest.mark.parametrize(
    ("text", "kwargs"),
    [
        ('{"query": "x"}', {"query": "x", "limit": 10, "kind": "web"}),
        ('{"query": "\\ud800\\u0000", "limit": "3"}', {"query": "\ud800\0", "limit": 3, "kind": "web"}),
    ],
)
def test_arguments_are_checked_and_completed(text: str, kwargs: dict) -> None:
    assert search.parse_arguments(text) == kwargs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "query: Field required"),
        ("{", "arguments of search are not valid JSON"),
        ('{"query": 3}', "query: Input should be a valid string"),
        ('{"query": "x", "limit": "many"}', "limit: Input should be a valid integer"),
        ('{"query": "x", "kind": "tv"}', "kind: Input should be 'web' or 'news'"),
        ('{"query": "x", "page": 2}', "page: Extra inputs are not permitted"),
        ("[]", "arguments: Input should be"),
        ("null", "arguments: Input should be"),
        ('{"query": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"query": "x"}}', "not valid JSON"),
    ],
)
def test_bad_arguments_are_told_to_the_model(text: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        search.parse_arguments(text)
    assert message in str(caught.value)


def test_rich_types_arrive_as_python_values() -> None:
    class Point(pydantic.BaseModel):
        x: int
        y: int

    # Resolved now: Point is local, and hints are looked up in the module.
    def draw(at, colour, widths, label) -> str:
        """Draw.

        Args:
            at: where.
            colour: in which one.
            widths: of the lines.
            label: what is written there.
        """
        return f"{at.x},{at.y} {colour.name} {sum(widths)} {label}"

    draw.__annotations__ = {
        "at": Point,
        "colour": Colour,
        "widths": list[float],
        "label": Annotated[str | None, "optional"],
    }
    made = Tool(draw)
    kwargs = made.parse_arguments(
        '{"at": {"x": 1, "y": 2}, "colour": "red", "widths": [1, 2.5], "label": null}'
    )
    assert made(**kwargs) == "1,2 RED 3.5 None"


def test_any_parameter_name_will_do() -> None:
    @tool
    def odd(json: int, _private: int, model_config: str, copy: str = "c") -> str:
        """Names that pydantic keeps for itself.

        Args:
            json: a.
            _private: b.
            model_config: c.
            copy: d.
        """
        return ""

    text = '{"json": 1, "_private": 2, "model_config": "m"}'
    assert odd.parse_arguments(text) == {"json": 1, "_private": 2, "model_config": "m", "copy": "c"}
    assert list(odd.parameters["properties"]) == ["json", "_private", "model_config", "copy"]
    with pytest.raises(ToolError, match="_private: Input should be a valid integer"):
        odd.parse_arguments('{"json": 1, "_private": "x", "model_config": "m"}')


def no_docstring(a: int) -> int:
    return a


def no_hint(a) -> int:
    """Doc."""
    return a


def variadic(*a: int) -> int:
    """Doc.

    Args:
        a: numbers.
    """
    return a[0]


def unknown_type(a: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
    """Doc."""
    return 0


def no_schema(a: Tool) -> int:
    """Doc.

    Args:
        a: a tool.
    """
    return 0


def no_argument_doc(a: int, b: int) -> int:
    """Doc.

    Args:
        a: a number.
    """
    return a


def other_argument_doc(a: int) -> int:
    """Doc.

    Args:
        a: a number.
        c: nothing.
    """
    return a


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_docstring, "needs a docstring"),
        (no_hint, "'a' needs a type hint"),
        (variadic, "cannot take"),
        (unknown_type, "Nowhere"),
        (no_argument_doc, "'b' needs a line in the docstring under `Args:`"),
        (other_argument_doc, r"explains \['c'\], which it does not take"),
        (no_schema, "arbitrary_types_allowed|schema"),
    ],
)
def test_a_bad_definition_fails_at_once_and_says_where(function, message: str) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        tool(function)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)


class Base:
    @tool
    def first(self) -> str:
        """First."""
        return "base"

    @tool(name="second-name")
    async def second(self, n: int) -> dict:
        """Second.

        Args:
            n: a number.
        """
        return {"n": n, "self": type(self).__name__}


class Derived(Base):
    @tool
    def third(self) -> str:
        """Third."""
        return "third"

    @tool
    def first(self) -> str:
        """First, again."""
        return "derived"


def test_tools_of_an_object_come_in_order_and_may_be_overridden() -> None:
    found = tools_of(Derived())
    assert list(found) == ["first", "second-name", "third"]
    assert found["first"]() == "derived"
    assert found["first"].schema["function"]["description"] == "First, again."


def test_a_method_is_bound_to_its_instance() -> None:
    instance = Derived()
    assert isinstance(Derived.third, Tool)
    assert isinstance(instance.third, BoundTool)
    assert instance.third() == "third"
    assert "self" not in instance.third.tool.parameters["properties"]


async def test_answers_become_text() -> None:
    found = tools_of(Derived())
    assert await found["first"].call("", run_off_loop) == "derived"
    assert await found["second-name"].call('{"n": 4}', run_off_loop) == '{"n": 4, "self": "Derived"}'


async def test_a_plain_function_is_a_tool_too() -> None:
    assert isinstance(search, CallableTool)
    assert await search.call('{"query": "x"}', run_off_loop) == "x/10/web"

    def logged(function):
        return functools.wraps(function)(lambda **kwargs: function(**kwargs))

    @tool
    @logged
    async def double(n: int) -> int:
        """Double.

        Args:
            n: a number.
        """
        return 2 * n

    assert await double.call('{"n": 4}', run_off_loop) == "8"


# ------------------------------------------------------------------------------------------- repair


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"a": 1}}', {"a": 1}),
        ('{"a": 1}"', {"a": 1}),
        ('{"a": 1,}', {"a": 1}),
        ("{'a': 1}", {"a": 1}),
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": "' + "[{\n" * 20_000 + '"}', {"a": "[{\n" * 20_000}),
        ('{"a": "say "hi" now"}', {"a": 'say "hi" now'}),
        ('{"a": "", "b": 1,}', {"a": "", "b": 1}),
        ('{"a": {"b": [1, 2,]}}</tool_call>', {"a": {"b": [1, 2]}}),
        ('{"a": "\\ud800",}', {"a": "\ud800"}),
    ],
)
async def test_almost_valid_json_is_repaired(text: str, meant: dict) -> None:
    repaired = await repaired_arguments(text, run_off_loop)
    assert repaired is not None
    assert json.loads(repaired) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        '{"a": 1}',  # valid
        "[1]",  # valid, if useless
        "{",  # the rest: cut off, or no telling
        '{"a": 1',
        '{"a": "rm -rf /tmp',
        '{"a": {"b": 1}',
        "{'a': 'def f(): return {}",
        '{"a":',
        '{"a": "x", "b"',
        '{"a" 1}',
        '{"a": , "b": 1}',
        '{"a": 1} {"b": 2}',
        "[1,]",
        "hello",
        "[" * 15_000,
        '{"a":' * 3_000,
        '{"a": ' + '"[' * 4_000 + "}",  # would take seconds
        '{"a": "' + "x" * 30_000 + '"}}',
        '{"a": ' + "9" * 5000 + "}",
        "\0",
        "\ud800{",
    ],
)
async def test_what_is_valid_cut_off_or_unclear_is_not_repaired(text: str) -> None:
    assert await repaired_arguments(text, run_off_loop) is None


async def test_arguments_that_were_cut_off_anywhere_are_not_repaired() -> None:
    whole = "{'command': 'echo \"hi\" > {a,b}', 'n': [1, {'a': None}],}"
    assert await repaired_arguments(whole, run_off_loop) is not None
    for end in range(len(whole)):
        assert await repaired_arguments(whole[:end], run_off_loop) is None, whole[:end]


# --------------------------------------------------------------------------------------- long output


def test_a_long_text_keeps_both_ends_and_says_what_is_missing() -> None:
    assert cut_output("x" * 10, 10) == "x" * 10
    assert cut_output("abcdefghijk", 5) == "abc\n[... 6 of 11 characters were cut ...]\njk"
    assert cut_output("abc", 0) == "\n[... 3 of 3 characters were cut ...]\n"


@pytest.mark.parametrize(
    "character",
    ["e\u0301", "\U0001f44d\U0001f3fd", "\U0001f469\u200d\U0001f52c", "\r\n", "\ud83d\ude00", "\u2764\ufe0f"],
)
def test_a_cut_never_splits_a_character(character: str) -> None:
    whole = character * 50
    for max_chars in range(40):
        cut = cut_output(whole, max_chars)
        head, note, tail = cut.partition("\n[... ")
        count, _, tail = (note + tail).removeprefix("\n[... ").partition(" of ")
        tail = tail.split(" ...]\n", 1)[1]
        assert head == character * (len(head) // len(character))
        assert tail == character * (len(tail) // len(character))
        assert len(head) + len(tail) + int(count) == len(whole)
        assert len(head) + len(tail) <= max_chars
