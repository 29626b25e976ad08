"""`vime-agents view`."""

import pytest

from tests.unit.vime_agents.stored import (
    game_episode,
    tool_episode,
    unstarted_episode,
    write_file,
    write_run,
)
from vime_agents.cli import main


@pytest.fixture
def folder(tmp_path):
    write_file(tmp_path / "eval" / "episodes.jsonl", [tool_episode("4"), game_episode(), unstarted_episode()])
    return str(tmp_path / "eval")


def test_the_list_is_filtered_and_keeps_its_numbers(folder, capsys):
    assert main(["view", folder]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 episodes, 1 failed; mean reward 0.7500 of 1"
    assert main(["view", folder, "--failed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["#", "EPISODE"], ["3", "unstarted"]]
    assert lines[2] == "1 of 3 episodes, 1 failed"


def test_nothing_found_is_said_with_code_1(folder, capsys):
    assert main(["view", folder, "--grep", "needle"]) == 1
    assert capsys.readouterr().out == "0 of 3 episodes, 0 failed\n"


@pytest.mark.parametrize("name", ["tools", "1", "episodes/tools"])
def test_one_episode_is_shown(folder, capsys, name):
    assert main(["view", folder, name]) == 0
    assert capsys.readouterr().out.startswith("#1  episodes/tools\n")


def test_a_run_in_which_ids_come_again(tmp_path, capsys):
    write_run(tmp_path)
    assert main(["view", str(tmp_path), "eval-0-0"]) == 2
    assert "say which one: eval-000000/eval-0-0" in capsys.readouterr().err
    assert main(["view", str(tmp_path), "eval-000010/eval-0-0"]) == 0
    assert capsys.readouterr().out.startswith("#23  eval-000010/eval-0-0\n")


def test_html_of_what_the_filters_keep(folder, tmp_path, capsys):
    out = tmp_path / "html"
    assert main(["view", folder, "--status", "ok", "--html", str(out)]) == 0
    assert capsys.readouterr().out == f"1 of 3 episodes, 0 failed: open {out / 'index.html'}\n"
    assert [p.name for p in (out / "episodes").iterdir()] == ["000002.html"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--faild"], "Did you mean --failed?"),
        (["1", "--failed"], "EPISODE names one"),
        (["1", "--html", "x"], "EPISODE names one"),
        (["toolz"], "Did you mean 'tools'?"),
        (["--status", "eror"], "Did you mean error?"),
    ],
)
def test_what_is_not_understood_is_a_usage_error_with_the_fix(folder, capsys, argv, told):
    assert main(["view", folder, *argv]) == 2
    assert told in capsys.readouterr().err


def test_without_a_folder_the_fix_is_named(capsys):
    assert main(["view"]) == 2
    assert "give a FOLDER" in capsys.readouterr().err
