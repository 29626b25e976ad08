"""Every command of docs/environments.md prints what stands below it; the examples are short."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vime_agents import registry
from vime_agents.evaluation.evaluate import evaluate
from vime_agents.policies.scripted import ScriptedPolicy

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
EPISODE = re.compile(
    r"^## (\S+-v\d+)\n.*?^```bash\n(.*?)^```\n+(`{3,})text\n(.*?)^\3$", re.MULTILINE | re.DOTALL
)
EXAMPLE = re.compile(r"^```python (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = {"sums": ("Sums", 10), "product": ("Product", 20), "repair": ("Repair", 30), "nim": ("Nim", 25)}


@pytest.mark.integration  # a process for each command, and sandboxes
@pytest.mark.timeout(300)
def test_every_episode_is_as_shown(tmp_path: Path) -> None:
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    episodes = EPISODE.findall(PAGE)
    assert [name for name, *_ in episodes] == re.findall(r"^## (\S+-v\d+)$", PAGE, re.MULTILINE)
    assert {name for name, *_ in episodes} <= registry.env_entry_points().keys()
    assert len(episodes) >= 11
    for name, command, _, shown in episodes:
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name}\n{done.stderr}"
        assert done.stdout == shown, name


def test_the_examples_are_short() -> None:
    lines = {name: [it for it in code.splitlines() if it.strip()] for name, code in EXAMPLE.findall(PAGE)}
    assert lines.keys() == MOST_LINES.keys()
    for name, (_, most) in MOST_LINES.items():
        assert len(lines[name]) <= most, f"{name}: {len(lines[name])} lines"


@pytest.mark.parametrize("name", MOST_LINES)
def test_the_examples_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{name}.py").write_text(dict(EXAMPLE.findall(PAGE))[name], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module(name)
    env_id, num_tasks = f"{name}:{MOST_LINES[name][0]}", 1 if name == "repair" else 3
    report = asyncio.run(evaluate(env_id, ScriptedPolicy("gold"), num_tasks=num_tasks))
    assert (report.ok, report.errors) == (num_tasks, {})
    if name != "nim":  # there is a winner and a loser
        assert report.mean == 1.0
        worse = asyncio.run(evaluate(env_id, ScriptedPolicy("wrong"), num_tasks=num_tasks))
        assert worse.mean == 0.0
