"""`vime-agents compare` as a user types it."""

import json

import pytest

from vime_agents.cli import main


@pytest.fixture
def folders(tmp_path):
    """Of gold and wrong replies to the same tasks."""
    made = []
    for model in ("wrong", "gold"):
        made.append(str(tmp_path / model))
        assert main(["eval", "cli_envs:Sum", "-m", f"scripted:{model}", "-n", "6", "--out", made[-1]]) == 0
    return made


def test_two_folders_are_compared_task_by_task(folders, capsys):
    wrong, gold = folders
    capsys.readouterr()
    assert main(["compare", gold, wrong, "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "cli_envs:Sum: 6 tasks in both",
        f"  A  {gold} (scripted:gold)",
        f"  B  {wrong} (scripted:wrong)",
    ]
    assert [line.split() for line in lines if line.startswith("  reward")] == [
        ["reward", "1.0000", "0.0000", "-1.0000"]
    ]
    assert any(line.split() == ["metric", "tool_calls", "1.0000", "0.0000", "-1.0000"] for line in lines)
    assert "p-values of the reward: none paired t-test, 0.0312 exact" in lines  # 2 / 2^6
    assert lines[-4:] == [
        "tasks: 0 better, 6 worse, 0 same",
        "  -1.0000  1.0000 -> 0.0000  test-0",
        "  -1.0000  1.0000 -> 0.0000  test-1",
        "  ...",
    ]


def test_json_has_a_comparison_for_each_further_folder(folders, capsys):
    wrong, gold = folders
    capsys.readouterr()
    assert main(["compare", wrong, gold, wrong, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["comparisons"]
    assert (first["reward"]["difference"], first["reward"]["better"], len(first["best"])) == (1.0, 6, 6)
    assert (second["reward"]["difference"], second["reward"]["same"]) == (0.0, 6)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], ["give two folders"]),
        (["one"], ["give two folders"]),
        (["a", "b", "--tpo", "3"], ["unknown flag --tpo", "--top"]),
        (["a", "b", "--top", "-1"], ["--top", "-1"]),
        (["a", "b"], ["a is no folder of an evaluation", "eval --out"]),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(capsys, flags, told):
    assert main(["compare", *flags]) == 2
    err = capsys.readouterr().err
    for part in told:
        assert part in err
