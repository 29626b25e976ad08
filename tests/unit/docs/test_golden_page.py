"""docs/golden.md: the values that the tests compare with."""

from __future__ import annotations

from pathlib import Path

from tests.unit.vime_trainers.golden import table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "golden.md"


def test_the_page_has_every_value() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "python -m tests.unit.vime_trainers.golden --table"
