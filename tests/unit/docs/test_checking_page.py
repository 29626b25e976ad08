"""The example in docs/checking.md is run, and prints what stands below it; its families are the real ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from vime_agents.checking.kit import FAMILIES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "checking.md"


def blocks(kind: str) -> list[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"```{kind}(?: (\S+))?\n(.*?)```", text, re.DOTALL)


def test_every_family_is_described():
    section = PAGE.read_text(encoding="utf-8").partition("## What is checked")[2]
    rows = re.findall(r"^\| ([a-z ]+?) \|", section, re.MULTILINE)
    assert rows[1:] == [{"replies": "bad replies", "async": "event loop"}.get(f, f) for f in FAMILIES]


@pytest.mark.integration  # a process of its own for the checks
def test_the_example_prints_what_the_page_shows(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "words", raising=False)
    (file, source), (_, example) = blocks("python")
    ((_, shown),) = blocks("text")
    (tmp_path / file).write_text(source, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "checking_page"}
    exec(compile(example, str(PAGE), "exec"), namespace)
    assert capsys.readouterr().out == shown
