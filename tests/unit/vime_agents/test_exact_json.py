"""What JSON does not tell apart comes back as it was."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ContractError
from vime_agents.exact_json import decode, encode

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["!tuple", "!set", "!dict"])
HASHABLE = st.recursive(
    KEYS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
VALUES = st.recursive(
    KEYS | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_comes_back_with_its_types(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value
    assert encode(found) == encode(value)


def test_the_marks_are_as_files_have_them():
    assert encode({"a": [(1, (2.5, None)), {3: ("x",)}], "!b": {"c": True}, "s": {2, 1}}) == {
        "!dict": [
            ["a", [{"!tuple": [1, {"!tuple": [2.5, None]}]}, {"!dict": [[3, {"!tuple": ["x"]}]]}]],
            ["!b", {"c": True}],
            ["s", {"!set": [1, 2]}],
        ]
    }


def test_what_json_does_not_have_is_named():
    with pytest.raises(ContractError, match="holds a bytes"):
        encode({"a": [b"x"]})
