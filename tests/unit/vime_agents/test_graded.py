"""What graders were given: what can be stored comes back exactly, what cannot is named."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

import vime_agents as vime
from vime_agents.errors import RecordError
from vime_agents.exact_json import decode
from vime_agents.graded import (
    ARTIFACTS,
    MAX_ARTIFACT_BYTES,
    MAX_COMPARED,
    Graded,
    assigned_names,
    decoded_artifacts,
    exact_json,
    fingerprint,
    is_large,
    stored_state,
    with_artifacts,
)
from vime_agents.messages import user
from vime_agents.reward import reward


def test_a_record_comes_back_and_what_is_empty_is_left_out():
    full = Graded(
        stop="done",
        terminated=True,
        answer="42",
        turn=3,
        messages=(user("q"),),
        counters={"tool_calls": 2.0},
        earned=0.5,
        state={"found": [1, "x"]},
        unchanged=("library",),
        lost={"rng": "a Generator"},
        assigned=("found", "rng"),
        artifacts={"a.py": "eA=="},
    )
    assert Graded.from_json(json.loads(json.dumps(full.to_json()))) == full
    empty = Graded(stop="", terminated=False, turn=0)
    assert empty.to_json() == {"version": 1, "stop": "", "terminated": False, "turn": 0}
    assert Graded.from_json(empty.to_json()) == empty
    nothing_made = with_artifacts(empty, {})
    assert Graded.from_json(nothing_made.to_json()).artifacts == {}


@pytest.mark.parametrize("change", [{"version": 2}, {"turn_number": 3}])
def test_a_record_of_another_kind_is_refused(change):
    with pytest.raises(RecordError, match="what was graded"):
        Graded.from_json(Graded(stop="done", terminated=True, turn=1).to_json() | change)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        1.5,
        "x",
        [],
        {"b": [1, {"a": None}], "a": 2},
        "\ud800 \x00",
        (1, (2.0,)),
        {1, "x", (2, 3)},
        frozenset({1}),
        {1: "a", (2, 3): {"!set": [1]}},
    ],
)
def test_what_is_stored_comes_back(value):
    assert decode(json.loads(exact_json(value) or "")) == value


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        object(),
        re.compile("x"),
        b"x",
        Point(1),
        Counter("aab"),
        np.float64(0.5),
        {np.float64(0.5)},
        [object()],
    ],
)
def test_what_would_come_back_as_something_else_is_not(value):
    assert exact_json(value) is None


def test_the_order_of_a_dictionary_is_part_of_it():
    assert list(decode(json.loads(exact_json({"b": 1, "a": 2}) or ""))) == ["b", "a"]
    assert fingerprint({"b": 1, "a": 2}) != fingerprint({"a": 2, "b": 1})
    assert fingerprint({3, 1, 2}) == fingerprint({2, 3, 1})


def test_state_is_stored_or_as_it_was_or_named():
    made = {"a": [], "b": [2], "c": re.compile("x"), "d": [Point(1)], "long": ["x"] * 5000, "e": 1}
    initial = {name: fingerprint(value) for name, value in made.items()}
    now = {**made, "a": [1], "seen": Counter("a"), "more": ["x"] * 5000, "e": 1.0}
    state, unchanged, lost = stored_state(now, initial)
    assert state == {"a": [1], "e": 1.0}
    assert unchanged == ("b", "c", "long")
    assert lost == {
        "d": "a list, which holds what JSON does not have",
        "seen": "a Counter, which JSON does not have",
        "more": "25000 bytes; at most 8192 are stored",
    }


def test_what_is_huge_is_not_even_looked_at():
    huge = {"letters": "x" * (MAX_COMPARED + 1), "deep": [["y"] * 600] * 600}
    state, unchanged, lost = stored_state(huge, {name: fingerprint(value) for name, value in huge.items()})
    assert (state, unchanged) == ({}, ())
    assert set(lost) == set(huge)
    assert is_large(huge)
    endless: list[object] = []
    endless.append(endless)
    assert is_large(endless)
    assert not is_large({"a": ["b"] * 1000})


def test_artifacts_are_stored_once_and_only_if_all_of_them_fit():
    empty = Graded(stop="done", terminated=True, turn=1)
    files = {"a.py": b"x = 1\n", "b.bin": bytes(range(256))}
    found = with_artifacts(empty, files)
    assert decoded_artifacts(found.artifacts or {}) == files
    assert with_artifacts(found, files) == found
    other = with_artifacts(found, {})
    assert (other.artifacts, other.lost) == (
        None,
        {ARTIFACTS: "they were others each time that they were read"},
    )
    assert with_artifacts(other, files).artifacts is None
    large = with_artifacts(empty, {"a": b"x" * (MAX_ARTIFACT_BYTES + 1)})
    assert large.artifacts is None
    assert str(MAX_ARTIFACT_BYTES) in large.lost[ARTIFACTS]


def test_what_a_class_assigns_is_found_in_functions_of_every_kind():
    class Base(vime.ToolEnv):
        def setup(self):
            self.secret = 1

            def later():
                self.nested = 2

            later()

        @property
        def shown(self):
            return 0

        @shown.setter
        def shown(self, value):
            self.by_property = value

    class Derived(Base):
        @vime.tool
        def look(self) -> str:
            """Look."""
            self.by_tool = True
            return ""

        @reward
        def right(self):
            self.by_reward += 1

        @classmethod
        def make(cls):
            cls.by_class = 1

    expected = {"secret", "nested", "by_property", "by_tool", "by_reward", "by_class"}
    assert assigned_names(Derived) == expected
    assert assigned_names(Derived, skip="setup") == expected - {"secret", "nested"}
    assert assigned_names(vime.ToolEnv) == frozenset()
