"""Every command of the README is run, and its code works."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines() if line.strip()]

TEST_COMMAND = ".venv/bin/pytest -q -n 2 --dist loadfile --no-loadscope-reorder"

SHORT_DEMO = (
    "--num-rollout 2 --eval-interval 2 --n-eval-tasks 16 --rollout-batch-size 2 --n-samples-per-prompt 4"
)


def run(command: str, **env: str) -> str:
    """Run a line as a shell does; its output."""
    done = subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env=os.environ | env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


def test_it_begins_with_an_environment_of_at_most_20_lines(tmp_path: Path) -> None:
    language, code = BLOCKS[0]
    assert language == "python"
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    assert README.index(code) < README.index("make demo")
    (tmp_path / "from_the_readme.py").write_text(code)
    run(".venv/bin/vime-agents check from_the_readme:Calculator --quick", PYTHONPATH=str(tmp_path))


def test_the_two_commands_come_next() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    assert README.index("make demo") < 2000


def test_make_test_runs_all_tests() -> None:
    # This very test is part of `make test`, so what is checked is that nothing is left out. Within `make`,
    # an inner make would announce its folder.
    assert run("make --no-print-directory -n test", TEST_PROCESSES="2").splitlines()[-1] == TEST_COMMAND


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("make")])
def test_a_command_of_the_readme_works(command: str) -> None:
    from vime_trainers.models.tiny import ensure_tiny_qwen3

    output = run(command.replace("PATH", str(ensure_tiny_qwen3())))
    assert len(output) > 50


def test_make_demo_shows_the_whole_loop(tmp_path: Path) -> None:
    run_dir = tmp_path / "demo"
    output = run("make demo", DEMO_FLAGS=SHORT_DEMO, RUN=str(run_dir))
    summary = json.loads((run_dir / "summary.json").read_text())
    check_summary(summary)
    assert "held-out after" in output
    assert str(run_dir / "curve.png") in output
    assert (run_dir / "curve.png").read_bytes().startswith(b"\x89PNG")


def check_summary(summary: dict[str, Any]) -> None:
    """What every summary holds."""
    for name in ("eval_before", "eval_after"):
        evaluation = summary[name]
        assert evaluation["ci_low"] <= evaluation["mean"] <= evaluation["ci_high"]
        assert evaluation["n"] == 16
    assert summary["updates"] == summary["weight_version"] == 2
    assert 0 < summary["max_probe_logprob_diff"] < 1e-3
    assert 0 < summary["mean_rollout_train_logprob_diff"] < 1e-3
    assert summary["tokens_sampled"] >= summary["tokens_trained"] > 0
    assert {"startup", "rollout", "train", "sync", "eval", "checkpoint"} <= set(summary["seconds"])


def test_the_environment_of_the_readme_is_one() -> None:
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # the README's own code
    env = namespace["Calculator"]()
    env.reset(seed=1)
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "multiply", "arguments": json.dumps({"a": 6, "b": 7})},
            }
        ],
    }
    observation, reward, terminated, *_ = env.step(call)
    assert (observation["messages"][0]["content"], reward, terminated) == ("42", 0.0, False)
    *_, info = env.step(f"It is {env.gold()}")
    assert info["reward_result"].value == 1.0
    env.close()


def test_the_links_of_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
