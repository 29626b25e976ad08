"""Every block of docs/authoring.md is run, in order, and prints what stands below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "authoring.md"
BLOCK = re.compile(r"```(bash|python|text)\n(.*?)```", re.DOTALL)
PIP = re.compile(r"^pip install -e '(\w+)\[test\]'$", re.MULTILINE)


def run_block(kind: str, content: str, folder: Path) -> tuple[str, str]:
    """Run a block in `folder`: (all that it prints, what its last command prints)."""
    site = folder / "site"
    # Not `-e`, and not into the environment that the tests run in: this one is thrown away.
    install = f"pip install -q --no-deps --target '{site}' --upgrade '{folder}/\\1'"
    script = PIP.sub(install, content)
    if kind == "bash":
        *before, last = re.split(r"\n(?=vime-agents |echo |printf )", script)
        script = "\n".join([*before, "echo ----last----", last])
    command = ["bash", "-eu", "-c", script] if kind == "bash" else [sys.executable, "-c", script]
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(site), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{content}\n{done.stdout}\n{done.stderr}"
    return done.stdout.replace("----last----\n", "", 1), done.stdout.rpartition("----last----\n")[2]


@pytest.mark.integration  # pip, sandboxes, a checker
@pytest.mark.timeout(600)
def test_the_page_tells_the_truth(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 15
    printed: tuple[str, str] | None = None
    for kind, content in blocks:
        if kind == "text":
            assert printed is not None
            assert content in printed
            printed = None
        else:
            printed = run_block(kind, content, tmp_path)
