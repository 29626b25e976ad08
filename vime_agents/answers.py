"""Read an answer out of free text: what graders of numbers share."""

from __future__ import annotations

import re
from decimal import Decimal

MAX_DIGITS = 100
"""A longer number is no answer to anything; reading it would take time."""

# A minus after a digit is a subtraction or a range ("3-5"), not a sign.
_NUMBER = re.compile(r"(?<![0-9])-?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")


def last_number(text: str) -> Decimal | None:
    """The last number of a text, exactly: `-7`, `1,234`, `2.50`; None: there is none, or it is endless."""
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 - the last one counts
        pass
    if found is None or len(found[0]) > MAX_DIGITS:
        return None
    return Decimal(found[0].replace(",", ""))


def match_number(text: str, answer: float | str) -> bool:
    """Whether the last number of `text` is exactly `answer`; 2.50 is 2.5.

    Args:
        text: what the model wrote.
        answer: a number, or a number as text. A float stands for its shortest decimal form.
    """
    return last_number(text) == Decimal(str(answer).replace(",", ""))
