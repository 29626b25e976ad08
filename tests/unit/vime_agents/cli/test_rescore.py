"""`vime-agents rescore` as a user types it."""

import json

import pytest

from vime_agents.cli import main


@pytest.fixture
def folder(tmp_path):
    path = str(tmp_path / "old")
    assert main(["eval", "cli_envs:Sum", "-m", "scripted:gold", "-n", "5", "--out", path]) == 0
    return path


def mend(tmp_path, old, new):
    """Another grader in the module that was imported already."""
    import cli_envs

    source = (tmp_path / "modules" / "cli_envs.py").read_text()
    assert old in source
    exec(compile(source.replace(old, new), "cli_envs.py", "exec"), vars(cli_envs))


def test_old_and_new_means_and_the_changed_episodes_are_shown(folder, tmp_path, capsys):
    mend(tmp_path, "return float(text ==", "return 0.5 * float(text ==")
    capsys.readouterr()
    assert main(["rescore", folder, "--top", "2"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "cli_envs:Sum (test, 5 tasks x 1, seed 0) played by scripted:gold"
    assert lines[1].startswith("  reward    1.0000 -> 0.5000 ")
    assert "  episodes  5 scored again, 5 changed" in lines
    assert f"  written   {folder}-rescored" in lines
    assert lines[-3:] == [
        "  1.0000 -> 0.5000  eval-0-0 of task test-0  (score 1.0000 -> 0.5000)",
        "  1.0000 -> 0.5000  eval-1-0 of task test-1  (score 1.0000 -> 0.5000)",
        "  ... and 3 more",
    ]
    assert captured.err.splitlines()[-1] == "5/5 episodes, reward 0.500, 0 failed"
    assert main(["rescore", folder]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["rescore", folder, "--out", str(tmp_path / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["old"]["mean"], found["new"]["mean"], len(found["changes"])) == (1.0, 0.5, 5)
    assert found["changes"][0]["components"] == {"score": [1.0, 0.5]}


def test_a_refusal_names_what_is_needed_and_what_to_do(folder, tmp_path, capsys):
    mend(tmp_path, "return float(text ==", "return float(self.sandbox() and text ==")
    capsys.readouterr()
    assert main(["rescore", folder]) == 2
    err = capsys.readouterr().err
    assert "score needs the episode's sandbox, of episode eval-" in err
    assert "evaluate again" in err
    assert "--keep" not in err


def test_graders_that_fail_too_often_have_their_own_code(folder, tmp_path, capsys):
    mend(tmp_path, "return float(text ==", "return 1 / 0 or float(text ==")
    assert main(["rescore", folder]) == 3
    assert "division by zero" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], ["which folder?"]),
        (["nowhere"], ["nowhere is no folder of an evaluation"]),
        (["a", "b"], ["unexpected argument 'b'"]),
        (["a", "--kep", "x"], ["unknown flag --kep", "--keep"]),
        (["a", "--tasks", "old"], ["--tasks", "'old'"]),
        (["a", "--concurrency", "0"], ["--concurrency", "0"]),
    ],
)
def test_what_cannot_be_understood_is_a_usage_error(capsys, flags, told):
    assert main(["rescore", *flags]) == 2
    err = capsys.readouterr().err
    for part in told:
        assert part in err
