"""`vime-agents check`."""

import json

import pytest

from vime_agents.cli import main


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
    ],
)
def test_wrong_usage_is_refused_with_what_would_be_right(capsys, argv, said):
    assert main(argv) == 2
    assert said in capsys.readouterr().err


@pytest.mark.integration
def test_a_good_env_exits_with_0_and_a_faulty_one_with_1(capsys):
    assert main(["check", "cli_envs:Sum", "--quick", "--json", "--only", "gold-wins"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert {r["id"]: r["state"] for r in report["results"]}["gold-wins"] == "passed"
    assert main(["check", "cli_envs:Broken", "--quick", "--only", "tools-used"]) == 1
    out = capsys.readouterr().out
    assert "the adding machine is on fire" in out
