from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_tools.arithmetic import MAX_BITS, BadExpression, evaluate

integers = st.integers(min_value=-(10**12), max_value=10**12)


@given(integers, integers, integers)
def test_integers_stay_exact(a: int, b: int, c: int) -> None:
    assert evaluate(f"({a}) * ({b}) - ({c})") == a * b - c
    assert type(evaluate(f"({a}) * ({b})")) is int


@given(integers, integers.filter(bool))
def test_quotients_are_exact_when_they_are_whole(a: int, b: int) -> None:
    quotient = evaluate(f"({a * b}) / ({b})")
    assert (quotient, type(quotient)) == (a, int)
    assert evaluate(f"({a}) / ({b})") == float(Fraction(a, b))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("2 ** 3 ** 2", 512),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("7 / 2", 3.5),
        ("2 ** -1", 0.5),
        ("-2 ** 2", -4),
        (" +1.5e3 ", 1500.0),
        ("0xff", 255),
        ("1 ** 9999999999", 1),
        ("(-1) ** 10000000001", -1),
        ("123456789 ** 20", 123456789**20),
    ],
)
def test_values(expression: str, value: float) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("__import__('os').system('id')", "only numbers"),
        ("abs(1)", "only numbers"),
        ("x", "only numbers"),
        ("True + 1", "only numbers"),
        ("1 < 2", "only numbers"),
        ("[1][0]", "only numbers"),
        ("1j", "only numbers"),
        ("1 if 1 else 2", "only numbers"),
        ("1 | 2", "only numbers"),
        ("1; 2", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("1\0", "not an arithmetic expression"),
        ("1 / 0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("(-9) ** 9 ** 9", "too large"),
        ("1e308 * 10", "too large"),
        ("10.0 ** 400", "too large"),
        ("1e999", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("(" * 400 + "1" + ")" * 400, "parentheses"),
        ("1" * 1001, "1001 characters"),
    ],
)
def test_what_is_not_arithmetic_is_refused_in_words(expression: str, message: str) -> None:
    with pytest.raises(BadExpression, match=message):
        evaluate(expression)


def test_repeated_squaring_cannot_grow_without_bound() -> None:
    largest = 2**MAX_BITS - 1
    assert evaluate(f"2 ** {MAX_BITS - 1}") == (largest + 1) // 2
    with pytest.raises(BadExpression, match="too large"):
        evaluate(f"2 ** {MAX_BITS - 1} * 2")
    with pytest.raises(BadExpression, match="too large"):
        evaluate(f"(2 ** {MAX_BITS // 2}) ** 3")
