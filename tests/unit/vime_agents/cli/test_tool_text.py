"""Tools as text for a person."""

from typing import Literal

import pytest

from vime_agents.cli.tool_text import tool_lines, type_of
from vime_agents.tools import tool


@tool
def find(word: str, limit: int = 3, order: Literal["up", "down"] | None = None) -> str:
    """Find a word.

    In a book.

    Args:
        word: to look for.
        limit: at most so many.
        order: of the hits.
    """
    return ""


def test_a_tool_is_its_call_its_text_and_its_parameters():
    assert tool_lines(find.schema) == [
        "find(word, limit=, order=)",
        "  Find a word.",
        "  ",
        "  In a book.",
        "    word: string  to look for.",
        "    limit: integer (default: 3)  at most so many.",
        '    order: one of "up", "down" or null (default: null)  of the hits.',
    ]


def test_a_tool_without_parameters_is_its_call_and_its_text():
    schema = {"type": "function", "function": {"name": "now", "description": "The time."}}
    assert tool_lines(schema) == ["now()", "  The time."]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "array", "items": {"type": "number"}}, "array of number"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"$ref": "#/$defs/Point"}, "object"),
        ({}, "any"),
    ],
)
def test_types_are_words(schema, text):
    assert type_of(schema) == text
