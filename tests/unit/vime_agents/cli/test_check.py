"""`vime-agents check`."""

import json
import sys
from dataclasses import replace

import pytest

from vime_agents.checking.finding import Report
from vime_agents.checking.scale import FULL, QUICK
from vime_agents.cli import check, main

SCALED = """
import os

import vime_agents as vime
from vime_agents.multi_agent import Game


def note(env):
    with open(os.environ["PLAYED"], "a") as file:
        print(env.task_id, file=file)


class Word(vime.AgentEnv):
    def make_task(self, rng):
        return {"number": int(rng.integers(10**9))}

    def setup(self):
        note(self)

    def prompt(self):
        return f"Say {self.task['number']}."

    def score(self, text):
        return float(text == str(self.task["number"]))


class Nim(Game):
    possible_agents = ("first", "second")

    def make_task(self, rng):
        return {"number": int(rng.integers(10**9))}

    def start(self, rng):
        note(self)
        return "first"

    def view(self, me):
        return f"Say {self.task['number']}."

    def move(self, me, text):
        return {"first": 1.0, "second": -1.0}
"""
"""One env and one game that write down the tasks that they play."""


def test_the_list_needs_no_env(capsys):
    assert main(["check", "--list"]) == 0
    out = capsys.readouterr().out
    assert "same-seed" in out
    assert "crash" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["check"], "which environment?"),
        (["check", "Calculater-v0"], "'Calculator-v0'"),
        (["check", "Calculator-v0", "--only", "leak-fles"], "'leak-files'"),
        (["check", "Calculator-v0", "--quik"], "--quick"),
        (["check", "gymnasium:Env"], "no AgentEnv"),
        (["check", "Calculator-v0", "--tasks", "2"], "--tasks: 2 is not 3 or more"),
        (["check", "Calculator-v0", "--tasks", "many"], "--tasks: 'many' is no whole number"),
        (["check", "Calculator-v0", "--seeds", "0"], "--seeds: 0 is not 1 or more"),
        (["check", "Calculator-v0", "--soak", "15"], "--soak: 15 is not 16 or more: growth"),
        (["check", "Calculator-v0", "--soak", "9999999"], "--soak: 9999999 is more than 1000000"),
        (["check", "Calculator-v0", "--soak", "20.5"], "--soak: '20.5' is no whole number"),
        (["check", "Calculator-v0", "--slow-ms", "5"], "--slow-ms: 5.0 is not 10 or more"),
        (["check", "Calculator-v0", "--slow-ms", "nan"], "--slow-ms: nan is not 10 or more"),
        (["check", "Calculator-v0", "--slow-ms", "6000"], "--slow-ms: 6000.0 is more than 5000"),
    ],
)
def test_wrong_usage_is_refused_with_what_would_be_right(capsys, argv, said):
    assert main(argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_each_flag_changes_one_number_and_the_rest_stays(quick, monkeypatch, capsys):
    asked = []

    async def run_checks(env_id, *, split, scale, only, on_result):
        asked.append(scale)
        return Report(env_id=env_id, split=split, scale=scale, results=())

    monkeypatch.setattr(check, "run_checks", run_checks)
    base = QUICK if quick else FULL
    for flags, expected in (
        ([], base),
        (["--tasks", "7"], replace(base, num_tasks=7)),
        (["--seeds", "8"], replace(base, num_seeds=8)),
        (["--soak", "90"], replace(base, num_leak_episodes=90)),
        (["--slow-ms", "12.5"], replace(base, lag_s=0.0125)),
        (["--seeds", "1", "--soak", "16"], replace(base, num_seeds=1, num_leak_episodes=16)),
    ):
        assert main(["check", "Calculator-v0", *quick, *flags]) == 0
        assert asked.pop() == expected
    capsys.readouterr()


@pytest.mark.integration  # a process of its own for the checks
@pytest.mark.parametrize("env_id", ["scaled_envs:Word", "scaled_envs:Nim"])
def test_the_process_of_the_checks_plays_what_is_asked_for_and_the_report_says_so(
    env_id, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PLAYED", str(tmp_path / "played"))
    (tmp_path / "modules" / "scaled_envs.py").write_text(SCALED)
    try:
        argv = ["check", env_id, "--quick", "--only", "instances", "--tasks", "5", "--soak", "30", "--json"]
        assert main(argv) == 0
    finally:
        sys.modules.pop("scaled_envs", None)
    told = json.loads(capsys.readouterr().out)["scale"]
    assert (told["num_tasks"], told["num_leak_episodes"], told["num_seeds"]) == (5, 30, 4)
    # `instances` pins the tasks of its episodes; --quick alone has three.
    played = (tmp_path / "played").read_text().split()
    assert {f"train-{index}" for index in range(5)} <= set(played)
    assert "train-5" not in played


@pytest.mark.integration
def test_a_good_env_exits_with_0_and_a_faulty_one_with_1(capsys):
    assert main(["check", "cli_envs:Sum", "--quick", "--json", "--only", "gold-wins"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert {r["id"]: r["state"] for r in report["results"]}["gold-wins"] == "passed"
    assert main(["check", "cli_envs:Broken", "--quick", "--only", "tools-used"]) == 1
    out = capsys.readouterr().out
    assert "the adding machine is on fire" in out
