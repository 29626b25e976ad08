from __future__ import annotations

from decimal import Decimal

import pytest

from vime_agents.answers import last_number, match_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 42.", "42"),
        ("first 3, then -7", "-7"),
        ("1,234,567 metres", "1234567"),
        ("options 1,2", "2"),
        ("pages 3-5", "5"),
        ("10 - 5 = -5", "-5"),
        ("$3.05", "3.05"),
        ("007", "7"),
        ("1,2345", "2345"),
    ],
)
def test_the_last_number_counts(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "nan inf", "٣٤ ² Ⅷ", "9" * 101, "-", "1" * 1_000_000])
def test_what_holds_no_number(text: str) -> None:
    assert last_number(text) is None


def test_numbers_are_compared_exactly() -> None:
    assert match_number("2.50", 2.5)
    assert match_number("so 1,000", "1000")
    assert match_number("0.3", 0.3)
    assert not match_number("0.30000000000000004", 0.3)
    assert not match_number("12.5", 12)
    assert not match_number("no idea", 0)
