"""What episodes are compared by."""

import numpy as np
import pytest

from vime_agents.checking.drive import comparable, first_difference
from vime_agents.episode import RewardResult


def test_values_that_mean_the_same_compare_equal():
    first = {"a": (1, [2.0]), "set": {"x", "y"}, "array": np.array([1, 2]), "object": object()}
    again = {"a": (1, [2.0]), "set": {"y", "x"}, "array": np.array([1, 2]), "object": object()}
    assert first_difference(comparable(first), comparable(again)) is None


def test_not_a_number_equals_itself():
    assert first_difference(comparable([float("nan")]), comparable([float("nan")])) is None


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [
        ({"m": [{"content": "a"}]}, {"m": [{"content": "b"}]}, "m[0].content: 'a' and then 'b'"),
        ([1], [1, 2], ": [1] and then [1, 2]"),
        ({"a": 1}, {"b": 1}, ": {'a': 1} and then {'b': 1}"),
        ({"a": None}, {"a": 0}, "a: None and then 0"),
    ],
)
def test_the_first_difference_is_named_with_its_place(left, right, difference):
    assert first_difference(comparable(left), comparable(right)) == difference


def test_rewards_and_errors_are_compared_by_content():
    reward = RewardResult(value=0.5, components={"a": 0.5}, weights={"a": 1.0})
    assert comparable(reward)["components"] == {"a": 0.5}
    assert comparable(ValueError("x")) == "ValueError: ValueError('x')"
