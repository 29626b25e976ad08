"""The rating against closed forms, and against a maximiser that knows nothing of Newton's steps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from vime_agents.evaluation.rating import ELO, Game, firth, rate


def games(opponent: str, first: bool, won: int, drawn: int, lost: int) -> list[Game]:
    scores = [1.0] * won + [0.5] * drawn + [0.0] * lost
    return [
        Game(opponent=opponent, first=first, score=score, task=f"{opponent}{first}{n}")
        for n, score in enumerate(scores)
    ]


def logit(wins: float, losses: float) -> float:
    """Firth's estimate of one chance: half a win and half a loss more (Firth 1993, section 3)."""
    return math.log((wins + 0.5) / (losses + 0.5))


def test_one_opponent_is_solved_by_hand() -> None:
    # Two chances, two unknowns: b + g and b - g are those of either seat alone. A draw is half a win.
    rating = rate([*games("a", True, 7, 2, 1), *games("a", False, 3, 2, 5)])
    assert rating is not None
    first, second = logit(8, 2), logit(4, 6)
    assert rating.ahead_of["a"].elo == pytest.approx(ELO * (first + second) / 2)
    assert rating.first_seat.elo == pytest.approx(ELO * (first - second) / 2)


def test_elo_is_that_of_chess() -> None:
    # 400 points: ten wins for one loss.
    assert math.log(10) * ELO == pytest.approx(400)


def test_a_first_seat_that_wins_is_not_taken_for_strength() -> None:
    rating = rate([*games("a", True, 19, 0, 1), *games("a", False, 1, 0, 19)])
    assert rating is not None
    assert rating.ahead_of["a"].elo == pytest.approx(0, abs=1e-6)
    assert rating.first_seat.elo == pytest.approx(ELO * logit(19, 1))
    assert rating.first_seat.low > 200


def test_nobody_changed_seats() -> None:
    assert rate(games("a", True, 5, 0, 5)) is None
    assert rate([*games("a", True, 5, 0, 5), *games("b", True, 5, 0, 5)]) is None
    assert rate([]) is None


def test_who_won_every_game_is_ahead_by_something_finite_that_grows_with_the_games() -> None:
    low = 0.0
    for num in (2, 10, 100):
        rating = rate([*games("a", True, num, 0, 0), *games("a", False, num, 0, 0)])
        assert rating is not None
        ahead = rating.ahead_of["a"]
        assert ahead.elo == pytest.approx(ELO * logit(num, 0))
        assert low < ahead.elo < ahead.high
        low = ahead.elo
    assert ahead.low > 0


def penalised(design: np.ndarray, scores: np.ndarray, logits: np.ndarray) -> float:
    chance = 1 / (1 + np.exp(-design @ logits))
    fit = float((scores * np.log(chance) + (1 - scores) * np.log1p(-chance)).sum())
    information = design.T @ np.diag(chance * (1 - chance)) @ design
    return fit + math.log(np.linalg.det(information)) / 2


def test_several_opponents_are_where_the_penalised_likelihood_is_highest() -> None:
    rng = np.random.default_rng(3)
    design = np.zeros((60, 4))
    design[np.arange(60), rng.integers(3, size=60)] = 1
    design[:, 3] = rng.choice([-1.0, 1.0], size=60)
    scores = rng.choice([0.0, 0.5, 1.0], size=60, p=[0.2, 0.1, 0.7])
    scores[design[:, 0] == 1] = 1.0  # never lost to the first
    found = firth(design, scores)
    best = penalised(design, scores, found)
    for direction in rng.normal(size=(200, 4)):
        step = direction / np.linalg.norm(direction)
        for length in (1e-3, 0.1, 3.0):
            assert penalised(design, scores, found + length * step) < best


def test_few_games_are_where_the_penalised_likelihood_is_highest_too() -> None:
    # One game from each seat: two chances, each with half a win and half a loss more.
    rating = rate([*games("a", True, 0, 0, 1), *games("a", False, 0, 0, 1)])
    assert rating is not None
    assert rating.ahead_of["a"].elo == pytest.approx(ELO * logit(0, 1))
    rng = np.random.default_rng(5)
    tried = 0
    while tried < 300:  # whole steps of Newton's end elsewhere in 119 of them
        num_games, num_opponents = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        design = np.zeros((num_games, num_opponents + 1))
        design[np.arange(num_games), rng.integers(num_opponents, size=num_games)] = 1
        design[:, -1] = rng.choice([-1.0, 1.0], size=num_games)
        if np.linalg.matrix_rank(design) < num_opponents + 1:
            continue
        tried += 1
        scores = rng.choice([0.0, 0.5, 1.0], size=num_games)
        found = firth(design, scores)
        slopes = [
            penalised(design, scores, found + step) - penalised(design, scores, found - step)
            for step in 1e-4 * np.eye(num_opponents + 1)
        ]
        assert slopes == pytest.approx([0] * (num_opponents + 1), abs=1e-10)


def test_a_variance_of_nothing_is_not_rounded_below_nothing() -> None:
    rating = rate(
        [
            Game(opponent="a", first=True, score=0.0, task=0),
            Game(opponent="a", first=False, score=0.0, task=0),
            Game(opponent="b", first=False, score=0.0, task=1),
        ]
    )
    assert rating is not None
    assert math.isfinite(rating.first_seat.low)


def test_few_tasks_of_an_opponent_are_few_however_many_others_there_are() -> None:
    # Equal strength on the whole, but each task has a spread of 400 Elo of its own, which its 20 games share.
    # By the binomial, 95 % of 600 is 570 +- 11.
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        played = []
        for opponent, task in itertools.product("abcdef", range(3)):
            chance = 1 / (1 + 10 ** (-rng.normal(0, 400) / 400))
            for n in range(20):
                score = float(rng.random() < chance)
                played.append(Game(opponent=opponent, first=n % 2 == 0, score=score, task=(opponent, task)))
        rating = rate(played)
        assert rating is not None
        held += sum(ahead.low <= 0 <= ahead.high for ahead in rating.ahead_of.values())
    assert held >= 559


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    # 400 evaluations of 40 games, the truth 120 and 60 Elo. By the binomial, 95 % of 400 is 380 +- 9.
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        played = []
        for n in range(40):
            first = n % 2 == 0
            chance = 1 / (1 + 10 ** (-(120 + (60 if first else -60)) / 400))
            score = float(rng.random() < chance)
            played.append(Game(opponent="a", first=first, score=score, task=n))
        rating = rate(played)
        assert rating is not None
        held += rating.ahead_of["a"].low <= 120 <= rating.ahead_of["a"].high
    assert held >= 371


def test_copies_of_a_game_are_not_evidence() -> None:
    tasks = [*games("a", True, 6, 0, 2), *games("a", False, 3, 0, 5)]
    once, often = rate(tasks), rate([game for game in tasks for _ in range(9)])
    assert once is not None
    assert often is not None
    width, narrower = (r.ahead_of["a"].high - r.ahead_of["a"].low for r in (once, often))
    assert 0.8 < narrower / width < 1.5
    won = [Game(opponent="a", first=n % 2 == 0, score=1.0, task=n // 40) for n in range(80)]
    all_won = rate(won)  # two tasks, 80 copies: not what 80 games would say
    assert all_won is not None
    assert all_won.ahead_of["a"].low < 0
    alone = rate([Game(opponent="a", first=n % 2 == 0, score=1.0, task="one") for n in range(9)])
    assert alone is not None
    assert math.isnan(alone.ahead_of["a"].low)
