"""How much stronger a policy is than each of its opponents. Pure functions, numpy only.

Bradley and Terry's model (1952) with a term for the first seat, as chess has one for White: the policy wins
from seat z (+1: the first, -1: the second) against opponent j with the probability

    p = 1 / (1 + exp(-(b_j + g z))),    Elo = 400 / ln 10 * b_j

where b_j is how much stronger it is, and g what the first seat is worth. A draw is half a win.

b and g maximise the likelihood with Firth's penalty (1993), log-likelihood + log det(information) / 2. They
are finite also for a policy that won every game (Heinze and Schemper 2002): with no seats, it would be
b = log((wins + 1/2) / (losses + 1/2)).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vime_agents.evaluation.statistics import Z_95, t_quantile_975

ELO = 400 / math.log(10)
"""Elo points of one natural logit."""

_LONGEST_STEP = 2.0
"""Of a parameter in one step of Newton's, in logits."""
_SETTLED, _MOST_STEPS = 1e-8, 1000
"""Logits below which a step is none: near the top the likelihood is flat to its last digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """What one game of two came to, for the rated policy."""

    opponent: str
    first: bool
    """Whether the policy had the first seat."""
    score: float
    """1 won, 0.5 drawn, 0 lost."""
    task: Hashable
    """Games of one task are not independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elo:
    """A difference in Elo with its 95 % interval."""

    elo: float
    low: float
    """NaN where no interval can be given: fewer than two tasks against this opponent."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """What the games say about strength, apart from the seats."""

    ahead_of: dict[str, Elo]
    """Opponent -> how much stronger the policy is."""
    first_seat: Elo
    """What the first seat is worth to two of the same strength."""


def rate(games: Sequence[Game]) -> Rating | None:
    """The rating; None where the games cannot tell strength from seat, because nobody changed seats.

    Intervals: Wald's, from the information or, where that is wider, from the errors clustered by task (CR1)
    with Student's t. Where all games with an opponent ended alike, those of one task are taken for copies.
    """
    opponents = sorted({game.opponent for game in games})
    columns = {name: n for n, name in enumerate(opponents)}
    design = np.zeros((len(games), len(opponents) + 1))
    for row, game in enumerate(games):
        design[row, columns[game.opponent]] = 1.0
        design[row, -1] = 1.0 if game.first else -1.0
    if not games or np.linalg.matrix_rank(design) < design.shape[1]:
        return None
    scores = np.asarray([game.score for game in games])
    logits = firth(design, scores)
    half = _half_widths(design, scores, logits, [game.task for game in games])
    elos = [
        Elo(elo=ELO * value, low=ELO * (value - h), high=ELO * (value + h))
        for value, h in zip(logits.tolist(), half.tolist(), strict=True)
    ]
    return Rating(ahead_of=dict(zip(opponents, elos, strict=False)), first_seat=elos[-1])


def firth(design: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """[num_columns] logits of the penalised logistic regression of `scores` [n] on `design` [n, num_columns].

    Newton's steps on X'(y - p + h (1/2 - p)), h the leverages (Heinze and Schemper 2002, eq. 2), each halved
    until the penalised likelihood rises: with few games whole steps can go to and fro for ever.
    """
    logits = np.zeros(design.shape[1])
    reached = _penalised(design, scores, logits)
    for _ in range(_MOST_STEPS):
        chance, information = _fit(design, logits)
        weighted = design * np.sqrt(chance * (1 - chance))[:, None]
        leverage = np.einsum("ij,jk,ik->i", weighted, np.linalg.inv(information), weighted)
        step = np.linalg.solve(information, design.T @ (scores - chance + leverage * (0.5 - chance)))
        step *= min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), _LONGEST_STEP))
        while np.abs(step).max() > _SETTLED:
            height = _penalised(design, scores, logits + step)
            if height > reached:
                break
            step /= 2
        else:
            return logits
        logits, reached = logits + step, height
    raise ArithmeticError(f"the rating of {len(scores)} games did not settle in {_MOST_STEPS} steps")


def _penalised(
    design: NDArray[np.float64], scores: NDArray[np.float64], logits: NDArray[np.float64]
) -> float:
    """The logarithm of the likelihood, with Firth's penalty."""
    margins = design @ logits
    likelihood = scores @ margins - np.logaddexp(0, margins).sum()
    return float(likelihood + np.linalg.slogdet(_fit(design, logits)[1])[1] / 2)


def _fit(
    design: NDArray[np.float64], logits: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([n] chances of a win, [num_columns, num_columns] Fisher's information)."""
    chance = 1 / (1 + np.exp(-design @ logits))
    return chance, design.T @ (design * (chance * (1 - chance))[:, None])


def _half_widths(
    design: NDArray[np.float64],
    scores: NDArray[np.float64],
    logits: NDArray[np.float64],
    tasks: Sequence[Hashable],
) -> NDArray[np.float64]:
    """[num_columns] half of each 95 % interval, in logits; of an opponent, by its own tasks."""
    chance, information = _fit(design, logits)
    inverse = np.linalg.inv(information)
    numbers: dict[Hashable, int] = {}
    of_game = np.asarray([numbers.setdefault(task, len(numbers)) for task in tasks])
    sums = np.zeros((len(numbers), logits.size))
    np.add.at(sums, of_game, design * (scores - chance)[:, None])
    clustered = ((sums @ inverse) ** 2).sum(axis=0)  # the diagonal of inverse @ sums.T @ sums @ inverse
    half = np.full(logits.size, math.nan)
    for column, variance in enumerate(np.diag(inverse)):
        own = np.flatnonzero(design[:, column])
        num_tasks = np.unique(of_game[own]).size
        if num_tasks < 2:
            continue
        alike = len(set(scores[own].tolist())) == 1
        copies = own.size / num_tasks if alike else 1.0
        cr1 = clustered[column] * num_tasks / (num_tasks - 1)
        half[column] = max(
            Z_95 * math.sqrt(variance * copies), t_quantile_975(num_tasks - 1) * math.sqrt(cr1)
        )
    return half
