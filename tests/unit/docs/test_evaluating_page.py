"""Every Python file and every `$` command in docs/evaluating.md is run, and prints what stands below it."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

from vime_agents.cli import main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "evaluating.md"
BLOCK = re.compile(r"```(python|console)(?: (\S+))?\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ vime-agents (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def as_shown(text: str) -> str:
    """A pattern for what the page shows of an output."""
    return "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in text.splitlines())


def test_the_page_tells_the_truth(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    num_commands = 0
    for kind, file, content in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            (tmp_path / file).write_text(content, encoding="utf-8")
            # As a new process would: the module was another one in an earlier block.
            sys.modules.pop(Path(file).stem, None)
            importlib.invalidate_caches()
            continue
        for command, shown in COMMAND.findall(content):
            num_commands += 1
            assert main(shlex.split(command)) == 0, command
            printed = capsys.readouterr().out
            assert re.fullmatch(as_shown(shown), printed), f"{command} prints\n{printed}"
    sys.modules.pop("sums", None)
    assert num_commands >= 4
