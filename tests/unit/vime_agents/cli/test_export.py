"""`vime-agents export`."""

import json

import pytest

from tests.unit.vime_agents.stored import game_episode, tool_episode, unstarted_episode, write_file
from vime_agents.cli import main


@pytest.fixture
def folder(tmp_path):
    write_file(tmp_path / "eval" / "episodes.jsonl", [tool_episode("4"), game_episode(), unstarted_episode()])
    return str(tmp_path / "eval")


def test_the_suffix_says_the_format_and_the_flags_choose(folder, tmp_path, capsys):
    out = tmp_path / "failed.jsonl"
    assert main(["export", folder, "--out", str(out), "--failed"]) == 0
    assert capsys.readouterr().out == f"1 episode written to {out}\n"
    assert json.loads(out.read_text())["id"] == "unstarted"


def test_atif_to_the_standard_output(folder, capsys):
    assert main(["export", folder, "--format", "atif", "--out", "-", "--task", "4", "--tokens"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["steps"][2]["metrics"]["completion_token_ids"] == [20, 21, 22]
    assert err == "1 episode written to -\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--out", "x.jsonl", "--formt", "jsonl"], "Did you mean --format?"),
        (["--out", "x.jsonl", "--format", "jsnl"], "got 'jsnl'. Did you mean jsonl?"),
        (["--out", "x.txt"], "--format: x.txt does not say which; give one of jsonl, parquet, atif"),
        (["--out", "x.jsonl", "--format", "parquet"], "give one of the two another name"),
        (["--out", "x.parquet", "--format", "atif"], "give one of the two another name"),
        (["--out", "-", "--format", "parquet"], "Parquet needs a file"),
        ([], "give a FOLDER and --out FILE"),
        (["--out", "x.jsonl", "--grep", "("], "--grep: '(' is no regular expression"),
        (["--out", "x.jsonl", "--min-reward", "high"], "--min-reward: invalid float value: 'high'"),
    ],
)
def test_what_is_not_understood_is_a_usage_error_with_the_fix(
    folder, tmp_path, monkeypatch, capsys, argv, told
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", folder, *argv]) == 2
    assert told in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("x")] == []


def test_the_store_itself_is_never_written(folder, capsys):
    store = f"{folder}/episodes.jsonl"
    assert main(["export", folder, "--out", store, "--overwrite"]) == 2
    assert "is what is exported" in capsys.readouterr().err
    assert main(["export", folder, "--out", "-", "--format", "jsonl"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_help_names_formats_and_flags(capsys):
    with pytest.raises(SystemExit) as end:
        main(["export", "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("ATIF-v1.7", "--tokens", "--min-reward", "parquet"))
