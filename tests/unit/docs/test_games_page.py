"""Every block of Python in docs/games.md is run, in order, and prints what stands below it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")
pytest.importorskip("textarena")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "games.md"
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def test_the_page_tells_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "games_page"}
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _ in blocks] == ["python", "text"] * 7
    printed = ""
    for kind, content in blocks:
        if kind == "text":
            assert printed == content
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of PettingZoo's, at import
                exec(compile(content, "games.md", "exec"), namespace)
            printed = capsys.readouterr().out
