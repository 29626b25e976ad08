"""docs/design/test-plan.md: every test that it names exists, and says which numbers of the plan it holds."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "design" / "test-plan.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| .+? \| (.+) \|$", PAGE, re.MULTILINE)
LEFT_OUT = {76, *range(66, 74)}


@cache
def docstrings(file: str) -> dict[str, str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, kinds)}


def test_every_number_but_those_left_out_has_a_row() -> None:
    assert [int(number) for number, _ in ROWS] == [n for n in range(1, 83) if n not in LEFT_OUT]


def test_every_test_exists_and_names_its_number() -> None:
    for number, cell in ROWS:
        tests = re.findall(r"`([^`]+)::(test_\w+)`", cell)
        assert tests, number
        for file, name in tests:
            said = re.match(r"Plan ([\d, ]*\d)", docstrings(file)[name])
            assert said, f"{file}::{name}"
            assert number in said[1].split(", "), f"{file}::{name}"


def test_every_test_against_a_fault_exists() -> None:
    named = re.findall(r"`([^`]+)::(test_\w+)`", PAGE.split("## What went wrong elsewhere")[1])
    assert len(named) > 50
    assert [f"{file}::{name}" for file, name in named if name not in docstrings(file)] == []
