from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_agents.hidden_tests import programs

keys = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text() | st.binary()
plain = st.recursive(
    keys | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys | st.tuples(keys), inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


@settings(max_examples=40)
@given(plain)
def test_every_plain_value_comes_back(value: object) -> None:
    line = programs.dumps(value)
    assert "\n" not in line
    back = programs.loads(line)
    assert back == value
    assert type(back) is type(value)


def test_types_are_kept_apart() -> None:
    for value in [(1, 2), [1, 2], {"tuple": [1]}, {1: "a", "1": "b"}, True, 1, 1.0, b"1", "1"]:
        assert repr(programs.loads(programs.dumps(value))) == repr(value)
    assert math.isnan(programs.loads(programs.dumps(math.nan)))


def test_what_is_not_plain_is_refused() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    for value in (Sly(1), [Sly(1)], {"a": object()}, len, ValueError("x"), range(3)):
        with pytest.raises(TypeError, match="no plain value"):
            programs.dumps(value)


@pytest.mark.parametrize(
    "text",
    ["", "x", "{}", '{"a": 1, "b": 2}', '{"list": []}', '{"set": [[]]}', '{"bytes": "x"}', "[" * 10**5],
)
def test_what_cannot_have_been_made_here_is_an_error_of_its_text(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, RecursionError)):
        programs.loads(text)


def test_the_text_is_json() -> None:
    assert json.loads(programs.dumps(["value", None, 1.5])) == ["value", None, 1.5]
