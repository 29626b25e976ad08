"""Every block of code in the pages on tasks and rewards is run, in order, and prints what stands below it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from vime_agents.grading import default_pool

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"```(python|text|json)(?: (\S+))?\n(.*?)```", re.DOTALL)


@pytest.mark.integration  # graders in processes of their own
@pytest.mark.parametrize(("name", "num_blocks"), [("tasks", 9), ("rewards", 12)])
def test_the_page_tells_the_truth(name: str, num_blocks: int, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    default_pool().close()  # so that the graders' server finds the page's modules
    namespace: dict[str, Any] = {"__name__": f"{name}_page"}
    blocks = BLOCK.findall((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    assert len(blocks) == num_blocks
    printed = ""
    for kind, file, content in blocks:
        if kind == "text":
            assert printed == content
            printed = ""
        elif file:
            (tmp_path / file).write_text(content, encoding="utf-8")
        else:
            assert not printed, "output that the page does not show"
            exec(compile(content, f"{name}.md", "exec"), namespace)
            printed = capsys.readouterr().out
    assert not printed
    default_pool().close()
