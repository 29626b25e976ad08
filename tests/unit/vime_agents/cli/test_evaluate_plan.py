"""`vime-agents eval --dry-run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from vime_agents.cli import main
from vime_agents.cli.evaluate_plan import plan_of
from vime_agents.config import EvalConfig
from vime_agents.policies.metered import Spent

FILE = __file__
NOBODY = "http://127.0.0.1:1/v1#m"
"""A server that is not there: whoever calls it fails."""


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert main(["eval", *flags, "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_nothing_is_asked_and_nothing_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    plan = planned(
        capsys, "cli_envs:Sum", "-m", NOBODY, "-n", "7", "-k", "2", "--temperature", "1", "--out", str(out)
    )
    assert not out.parent.exists()
    assert (plan["env_id"], plan["split"], plan["num_tasks"], plan["episodes"]) == (
        "cli_envs:Sum",
        "test",
        7,
        14,
    )
    assert plan["task_ids"] == [f"test-{n}" for n in range(5)]
    assert plan["players"] == {"agent": NOBODY}
    assert plan["out"] == {"path": str(out), "finished": 0, "left": 14, "budget_spent": ""}
    limits = {"episode_s": 600.0, "generation_s": 120.0, "env_s": 120.0}
    assert plan["limits"] == {**limits, "max_turns": 3, "max_response_tokens": 256}
    assert plan["sandbox"] is None


def test_what_an_interrupted_folder_holds_is_told_and_left_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = ["cli_envs:Sum", "-m", "scripted:gold", "-n", "5", "--out", str(out)]
    assert main(["eval", *flags]) == 0
    (out / "report.json").unlink()
    lines = (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (out / "episodes.jsonl").write_bytes(b"".join(lines[:3]) + b'{"id": "torn')
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    plan = {"path": str(out), "finished": 3, "left": 2}
    assert planned(capsys, *flags)["out"] == {**plan, "budget_spent": ""}
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    spent = Spent(calls=5, prompt_tokens=90, sampled_tokens=10)
    (out / "usage.json").write_text(json.dumps(spent.to_dict()))
    config = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(config.replace("scripted:gold", f"'{NOBODY}'"))
    flags[2] = NOBODY
    budget = ("--max-total-tokens", "100")
    assert planned(capsys, *flags, *budget)["out"] == {**plan, "budget_spent": "100 of 100 tokens"}
    assert main(["eval", *flags, *budget, "--dry-run"]) == 0
    assert "2 left, none of which would begin: the budget is spent (100 of 100" in capsys.readouterr().out
    (out / "usage.json").write_text('{"calls": "x"}')
    assert main(["eval", *flags, "--dry-run"]) == 2
    assert "does not say what was spent" in capsys.readouterr().err


def test_what_the_run_would_refuse_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = ["eval", "cli_envs:Sum", "-m", "scripted:gold", "-n", "2", "--out", str(out)]
    assert main(done) == 0
    for flags, told in (
        (done, "holds a complete evaluation"),
        (["eval", "cli_envs:Sum", "-m", "gpt"], "--model: must be"),
        (["eval", "cli_envs:Sum", "-m", "http://HOST:PORT/v1#NAME"], "is no URL"),
        (["eval", "cli_envs:Sum", "-m", f"vllm:{tmp_path}/none"], "does not exist"),
        (["eval", "cli_envs:Sum", "-m", NOBODY, "--cache", f"{FILE}/c"], "--cache: cannot make the folder"),
        (["eval", "cli_envs:Sum", "-m", NOBODY, "--out", f"{FILE}/run"], "--out: cannot make the folder"),
        (["eval", "cli_envs:OnlyTest", "-m", NOBODY, "--split", "train"], "(train) is empty"),
        (["eval", "TicTacToe-v0", "-m", NOBODY, "--agents", "O=gpt"], "--agents: must be"),
        (["eval", "TicTacToe-v0", "-m", NOBODY, "--agents", "P=scripted:gold"], "unknown agent or role 'P'"),
    ):
        capsys.readouterr()
        assert main([*flags, "--dry-run"]) == 2, flags
        assert told in capsys.readouterr().err
    (out / "report.json").unlink()
    assert main([*done[:-4], "-n", "3", "--out", str(out), "--dry-run"]) == 2
    assert "num_tasks: 2 -> 3" in capsys.readouterr().err


def test_games_tell_who_plays_whom(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--agents", f"O=scripted:random|{NOBODY}", "--rotate-seats")
    plan = planned(capsys, "TicTacToe-v0", "-m", "scripted:gold", *flags)
    assert plan["players"] == {"X": "scripted:gold", "O": f"scripted:random|{NOBODY}"}
    assert plan["rotate_seats"] is True


def test_the_settings_at_the_end_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["Calculator-v0", "-m", "scripted:gold", "-n", "3", "--seed", "5", "--max-sandboxes", "2"]
    assert main(["eval", *flags, "--dry-run"]) == 0
    plan, _, settings = capsys.readouterr().out.partition("  settings\n")
    assert "tasks     3: test-0, test-1, test-2\n" in plan
    assert (
        "sandboxes local, memory_mb 128, max_processes 32, max_file_mb 1; at once: 2, 4 of them kept" in plan
    )
    values = yaml.safe_load(settings)
    assert values == EvalConfig.from_argv(["--env", *flags]).to_dict()


def test_turns_are_bounded_by_the_env_or_by_what_is_wrapped_around_it() -> None:
    import gymnasium

    from vime_agents.wrappers import TurnLimit

    entry = "cli_envs:Sum"
    gymnasium.register(id="dry/Sum-v0", entry_point=entry, max_episode_steps=2)
    gymnasium.register(
        id="dry/Sum-v1", entry_point=entry, additional_wrappers=(TurnLimit.wrapper_spec(max_turns=9),)
    )
    try:
        for env, most in (("dry/Sum-v0", 2), ("dry/Sum-v1", 3)):
            assert plan_of(EvalConfig(env=env, model="scripted:gold")).limits["max_turns"] == most
    finally:
        del gymnasium.registry["dry/Sum-v0"], gymnasium.registry["dry/Sum-v1"]
