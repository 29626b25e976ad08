"""Every block of code in docs/tools.md is run, in order, and prints what stands below it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tools.md"
BLOCK = re.compile(r"```(python|text)(?: (\S+))?\n(.*?)```", re.DOTALL)


@pytest.mark.integration  # a sandbox, and an MCP server
def test_the_page_tells_the_truth(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "tools_page"}
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 10
    printed = None
    for kind, file, content in blocks:
        if kind == "text":
            assert printed == content
            printed = None
        elif file:
            (tmp_path / file).write_text(content, encoding="utf-8")
        else:
            assert not printed, "output that the page does not show"
            exec(compile(content, str(PAGE), "exec"), namespace)
            printed = capsys.readouterr().out
    assert printed is None
