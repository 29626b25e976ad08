"""TicTacToe: every ending, moves that are no moves, and a perfect player."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

from vime_envs.games import tic_tac_toe
from vime_envs.games.tic_tac_toe import TicTacToe

HOSTILE = ["", "9", "-1", "I resign", "\x00", "\ud800", "🙂" * 1000, "8" * 5000, "1.5", "{'square': }"]


def play(*squares: str) -> TicTacToe:
    env = TicTacToe()
    env.reset(seed=0)
    for square in squares:
        env.step({env.acting[0]: square})
    return env


def rewards(env: TicTacToe) -> dict[str, float | None]:
    return {agent: result.value for agent, result in env.results.items()}


@pytest.mark.parametrize(
    ("squares", "expected"),
    [
        ("0 3 1 4 2", {"X": 1.0, "O": -1.0}),
        ("0 2 1 4 3 6", {"X": -1.0, "O": 1.0}),
        ("2 0 4 1 6", {"X": 1.0, "O": -1.0}),
        ("0 1 2 4 3 5 7 6 8", {"X": 0.0, "O": 0.0}),
    ],
)
def test_three_in_a_row_wins_and_a_full_board_is_a_draw(squares: str, expected: dict[str, float]) -> None:
    env = play(*squares.split())
    assert rewards(env) == expected
    assert (env.outcome and env.outcome.stop, env.acting) == ("done", ())


def test_every_line_wins_for_either_mark() -> None:
    for line in tic_tac_toe._LINES:
        board = list("012345678")
        for square in line:
            board[square] = "O"
        assert tic_tac_toe._winner(board) == "O"
    assert tic_tac_toe._winner(list("012345678")) is None


def test_the_board_is_shown_to_the_one_who_moves() -> None:
    env = TicTacToe()
    env.reset(seed=0)
    observations, *_ = env.step({"X": "I take the centre, 4."})
    assert observations["X"] == {"messages": ()}
    assert observations["O"]["messages"][0]["content"] == (
        "You play O. The board:\n0 1 2\n3 X 5\n6 7 8\nAnswer with the number of a free square."
    )
    env.close()


@pytest.mark.parametrize("reply", [*HOSTILE, "0"])
def test_no_move_and_a_taken_square_are_asked_again_and_then_lose(reply: str) -> None:
    env = play("0", reply)
    assert env.acting == ("O",)
    assert "not a legal move" in env.messages["O"][-1]["content"]
    assert env.board == list("X12345678")
    env.step({"O": reply})
    assert rewards(env) == {"X": 1.0, "O": -1.0}
    assert env.outcomes["O"].stop == "illegal_move"


def test_the_perfect_player_never_loses_and_draws_against_itself() -> None:
    env = TicTacToe()
    for seed in range(30):
        for gold, expected in (("X", {0.0, 1.0}), ("O", {0.0, 1.0})):
            rng = np.random.default_rng(seed)
            env.reset(seed=seed)
            while env.acting:
                (me,) = env.acting
                env.step({me: env.gold(me) if me == gold else str(rng.choice(env.legal(me)))})
            assert rewards(env)[gold] in expected
    env.reset(seed=0)
    while env.acting:
        env.step({env.acting[0]: env.gold(env.acting[0])})
    assert rewards(env) == {"X": 0.0, "O": 0.0}


def test_the_perfect_player_takes_a_win_and_stops_one() -> None:
    assert play("0", "8", "1", "7").gold("X") == "2"
    assert play("0", "4", "1").gold("O") == "2"


def test_a_game_of_two_is_at_most_25_lines() -> None:
    """From `class` to its end, without docstrings, blank lines, and what only players without a model use."""
    tree = ast.parse(Path(inspect.getfile(TicTacToe)).read_text())
    (game,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in ast.walk(game):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr):
            del node.body[0]
    game.body = [n for n in game.body if not (isinstance(n, ast.FunctionDef) and n.name == "gold")]
    lines = [line for line in ast.unparse(game).split("\n") if line.strip()]
    assert len(lines) <= 25, "\n".join(lines)
