"""`vime-agents envs`."""

import pytest

from vime_agents.cli import envs, main


@pytest.fixture
def known(monkeypatch):
    """The registry with the envs of conftest and one that cannot be loaded."""
    monkeypatch.setattr(
        envs.registry,
        "entry_points",
        lambda group: {
            "Sum-v0": "cli_envs:Sum",
            "OnlyTest-v0": "cli_envs:OnlyTest",
            "Gone-v0": "not_there:X",
            "Plain-v0": "gymnasium:Env",
        },
    )


@pytest.mark.usefixtures("known")
def test_the_list_has_tools_and_task_counts_and_survives_a_broken_plug_in(capsys):
    assert main(["envs"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["ID"].split() == ["ID", "TRAIN", "TEST", "TURNS", "TOOLS", "WHAT"]
    assert rows["Sum-v0"].split() == ["Sum-v0", "10000", "10000", "3", "add", "Adds", "with", "a", "tool."]
    assert rows["OnlyTest-v0"].split()[:4] == ["OnlyTest-v0", "-", "1", "3"]
    assert "cannot be loaded" in rows["Gone-v0"]
    assert "not_there" in rows["Gone-v0"]
    assert "Plain-v0" in rows


def test_one_env_is_shown_with_its_tools_tasks_and_text(capsys):
    assert main(["envs", "cli_envs:Sum"]) == 0
    out = capsys.readouterr().out
    assert "cli_envs:Sum" in out
    assert "Longer text." in out
    assert "tasks in test: 10000" in out
    assert "turns: at most 3" in out
    assert "reward: 0 to 1" in out
    assert "tool: add(a, b)  Add two numbers." in out


def test_help_needs_no_env(capsys):
    assert main(["envs", "--help"]) == 0
    assert "usage: vime-agents envs [ID]" in capsys.readouterr().out


def test_an_unknown_env_suggests_the_nearest(capsys):
    assert main(["envs", "Calculater-v0"]) == 2
    assert "'Calculator-v0'" in capsys.readouterr().err
