"""Every Python file and every `$` command in docs/evaluating.md is run, and prints what stands below it."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.unit.vime_agents.cli.chat_server import ChatServer
from vime_agents.cli import EXIT_CODES, main
from vime_agents.storage.exports.rows import COLUMNS, TOKEN_COLUMNS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "evaluating.md"
BLOCK = re.compile(r"```(python|console)(?: (\S+))?\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ vime-agents (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def as_shown(text: str) -> str:
    """A pattern for what the page shows of an output; `...` is lines, and inside a line anything."""

    def pattern(line: str) -> str:
        return re.escape(line[:1]) + re.escape(line[1:]).replace(r"\.\.\.", ".*") + "\n"

    return "".join(r"(?:.*\n)*?" if line == "..." else pattern(line) for line in text.splitlines())


def run_python(file: str, content: str) -> None:
    """Write the module, or run what has no name."""
    if not file:
        exec(compile(content, str(PAGE), "exec"), {"__name__": "evaluating_page"})
        return
    Path(file).write_text(content, encoding="utf-8")
    # As a new process would: the module was another one in an earlier block.
    sys.modules.pop(Path(file).stem, None)
    importlib.invalidate_caches()


def test_the_page_tells_the_truth(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ChatServer(busy_at_first=False) as server:
        server.says = "It is 100."
        run_page(PAGE.read_text(encoding="utf-8").replace("http://127.0.0.1:8000/v1", server.url), capsys)
    sys.modules.pop("sums", None)


def run_page(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    num_commands = 0
    for kind, file, content in BLOCK.findall(text):
        if kind == "python":
            run_python(file, content)
            capsys.readouterr()
            continue
        for command, shown in COMMAND.findall(content):
            num_commands += 1
            assert main(shlex.split(command)) == 0, command
            printed = capsys.readouterr().out
            assert re.fullmatch(as_shown(shown), printed), f"{command} prints\n{printed}"
    assert num_commands >= 4


def test_every_exit_code_is_described() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("| exit code |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)
    assert {int(code): text.replace("`", "").replace("\\|", "|") for code, text in rows} == EXIT_CODES


def test_every_column_of_an_export_is_described() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("| column | |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    added = {name: f"{meaning}; with `--tokens`" for name, meaning in TOKEN_COLUMNS.items()}
    assert rows == COLUMNS | added
