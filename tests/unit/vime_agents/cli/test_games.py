"""`vime-agents eval` of games."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vime_agents import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["eval", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_game_is_evaluated_against_another_player(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(
        capsys,
        *("TicTacToe-v0", "-m", "scripted:gold", "--agents", "O=scripted:wrong", "-n", "5"),
        *("--out", str(tmp_path / "run")),
    )
    assert code == 0
    assert "reward    1.0000" in out
    assert "agent     X: 1.0000 played by scripted:gold (5 done)" in out
    assert "agent     O: -1.0000 played by scripted:wrong (5 illegal_move)" in out
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 5
    for line in lines:
        trajectories = {t["agent"]: t for t in json.loads(line)["trajectories"]}
        assert trajectories["O"]["outcome"]["stop"] == "illegal_move"
        assert [len(trajectories[a]["turns"]) for a in "XO"] == [1, 2]


def test_games_are_listed_with_the_other_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["envs", "search", "row", "--json"]) == 0
    (game,) = [f for f in json.loads(capsys.readouterr().out) if f["id"] == "TicTacToe-v0"]
    assert (game["agents"], game["package"]) == (["X", "O"], "vime-agents")


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ("O", "--agents: must be AGENT=MODEL,..., got 'O'"),
        ("=scripted:gold", "--agents: must be AGENT=MODEL"),
        ("O=scripted:gold,O=scripted:wrong", "--agents: 'O' is given twice"),
        ("O=scripted:silver", "--agents: must be scripted:gold"),
        ("O=vllm:", "--agents: must be scripted:gold"),
        ("O=scripted:gold|", "--agents: O must be MODEL|MODEL|..., each once"),
        ("O=scripted:gold|scripted:gold", "--agents: O must be MODEL|MODEL|..., each once"),
        ("O=scripted:gold|scripted:silver", "--agents: must be scripted:gold"),
        ("O=http://127.0.0.1:1/v1", "--agents: 'http://127.0.0.1:1/v1' does not say which model"),
        ("P=scripted:gold", "unknown agent or role 'P'"),
    ],
)
def test_what_is_wrong_with_the_agents_is_named(
    capsys: pytest.CaptureFixture[str], agents: str, message: str
) -> None:
    code, _, err = run(capsys, "TicTacToe-v0", "-m", "scripted:gold", "--agents", agents)
    assert code == 2
    assert message in err


def test_an_agent_that_is_not_there_costs_no_start_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "TicTacToe-v0", "-m", "scripted:gold", "--agents", "P=vllm:no-such-folder")
    assert code == 2
    assert "unknown agent or role 'P'" in err


def test_who_won_is_said_of_games_of_two_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, *("ProposerSolver-v0", "-m", "scripted:gold", "--agents", "proposer=scripted:gold", "-n", "2")
    )
    assert code == 0
    assert "against   scripted:gold: 2 episodes, reward " in out


def test_a_pool_is_met_in_both_seats_and_the_report_ranks_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = (
        *("TicTacToe-v0", "-m", "scripted:gold", "--agents", "O=scripted:random|scripted:wrong"),
        *("--rotate-seats", "-n", "16", "--out", str(tmp_path / "run")),
    )
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "against   scripted:wrong: 8 episodes, 8 won, 0 drawn, 0 lost, reward 1.0000, ahead by +" in out
    assert "seats     the first is worth" in out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert set(report["opponents"]) == {"scripted:random", "scripted:wrong"}
    met: set[tuple[str, str]] = set()
    for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines():
        (other,) = [t for t in json.loads(line)["trajectories"] if (t["policy_of"] or t["agent"]) == "O"]
        met.add((other["agent"], other["policy"]))
    assert met == {(seat, f"scripted:{name}") for seat in "XO" for name in ("random", "wrong")}

    # What was played before an interruption is not drawn anew.
    lines = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    (tmp_path / "run" / "report.json").unlink()
    (tmp_path / "run" / "episodes.jsonl").write_text("".join(line + "\n" for line in lines[:5]))
    assert run(capsys, *arguments)[0] == 0
    again = json.loads((tmp_path / "run" / "report.json").read_text())
    assert again["opponents"] == report["opponents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("TicTacToe-v0",), "one policy plays them all"),
        (("ProposerSolver-v0", "--agents", "solver=scripted:gold"), "has the role of one that they do not"),
        (("Calculator-v0", "--agents", "O=scripted:gold"), "has one agent"),
    ],
)
def test_seats_rotate_only_where_somebody_can_change_places(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = run(capsys, *arguments, "-m", "scripted:gold", "--rotate-seats")
    assert code == 2
    assert message in err
