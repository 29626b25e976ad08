from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.episode import RewardResult
from vime_agents.errors import GraderError
from vime_agents.reward import reward_from_score

UNIT = (0.0, 1.0)


@pytest.mark.parametrize(
    ("score", "value"),
    [
        (0.25, 0.25),
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.int64(1), 1.0),
        (np.bool_(True), 1.0),
    ],
)
def test_a_number_is_the_reward(score, value: float) -> None:
    result = reward_from_score(score, UNIT)
    assert (result.value, type(result.value)) == (value, float)
    assert (result.components, result.weights, result.status) == ({"score": value}, {"score": 1.0}, "ok")


def test_components_are_weighed_and_weight_zero_is_a_metric() -> None:
    result = reward_from_score({"right": 1.0, "short": (0.5, 0.2), "turns": (37, 0)}, (0.0, 2.0))
    assert result.value == pytest.approx(1.1)
    assert result.components == {"right": 1.0, "short": 0.5, "turns": 37.0}
    assert result.weights == {"right": 1.0, "short": 0.2, "turns": 0.0}


parts = st.floats(-100, 100, width=32)


@given(st.dictionaries(st.text(max_size=3), st.tuples(parts, parts), max_size=6))
def test_the_value_is_the_exact_weighted_sum(components: dict) -> None:
    exact = sum((Fraction(v) * Fraction(w) for v, w in components.values()), Fraction(0))
    result = reward_from_score(components, (-math.inf, math.inf))
    assert result.value == pytest.approx(float(exact), rel=1e-12, abs=1e-9)


def test_a_result_passes_as_it_is() -> None:
    unscorable = RewardResult(value=None, status="unscorable", detail="no answer key")
    assert reward_from_score(unscorable, UNIT) is unscorable


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (None, "score must be a finite number, got None"),
        ("1.0", "score must be a finite number, got '1.0'"),
        (1j, "must be a finite number"),
        (float("nan"), "must be a finite number"),
        (float("inf"), "must be a finite number"),
        (np.array([1.0]), "must be a finite number"),
        ({"a": None}, "a must be a finite number"),
        ({"a": (1.0, float("nan"))}, "a weight must be a finite number"),
        ({"a": (1.0, 0.5, 2)}, r"a must be a number or \(value, weight\)"),
        (1.01, r"reward 1\.01 is outside the declared range \[0\.0, 1\.0\]"),
        (-0.01, "outside the declared range"),
        ({"a": 1.0, "b": 1.0}, "outside the declared range"),
        (RewardResult(value=2.0), "outside the declared range"),
    ],
)
def test_what_is_no_reward_is_the_graders_failure(score, message: str) -> None:
    with pytest.raises(GraderError, match=message):
        reward_from_score(score, UNIT)


def test_the_ends_of_the_range_are_inside() -> None:
    assert [reward_from_score(s, UNIT).value for s in UNIT] == [0.0, 1.0]
