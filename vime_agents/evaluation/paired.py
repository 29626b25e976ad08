"""Two evaluations of the same tasks -> how much better the second is. Pure functions, numpy only.

What is compared are tasks, each by the mean of its episodes: d_t = mean of B on task t - mean of A on it.
Differences between tasks, which are most of the variance of a score, cancel in d_t (Miller 2024,
arXiv:2411.00640, section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vime_agents.evaluation.statistics import t_distribution, t_quantile_975

SAME = 1e-9
"""Two rewards, or means of them, that are no further apart are the same: rounding tells nobody apart."""
_LARGEST_GRID = 1 << 20
_MOST_STEPS = 2_000_000_000
_MOST_ENUMERATED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Some quantity of B minus that of A, over the tasks that have it in both."""

    num_tasks: int
    a: float
    """Mean of the tasks' means in A; NaN without tasks."""
    b: float
    difference: float
    """b - a."""
    low: float
    """95 % interval of `difference`; NaN with fewer than two tasks, or when all tasks differ by the same:
    nothing shows then how much they could."""
    high: float
    p_value: float
    """Of a paired t-test that the difference is 0, two-sided; NaN where there is no interval."""
    better: int
    """Tasks on which B has more."""
    worse: int
    same: int


def paired_difference(a: Mapping[str, float], b: Mapping[str, float]) -> PairedDifference:
    """Compare task by task: task id -> mean of its episodes. Tasks in only one of both are left out.

    Interval and p-value: Student's t with T - 1 degrees of freedom on the standard error of the T
    differences. Episodes of one task are one observation, so that both are clustered by task.
    """
    tasks = [task for task in a if task in b]
    differences = [b[task] - a[task] for task in tasks]
    better, worse = sum(d > SAME for d in differences), sum(d < -SAME for d in differences)
    low, high, p_value = paired_t(differences)
    return PairedDifference(
        num_tasks=len(tasks),
        a=_mean([a[task] for task in tasks]),
        b=_mean([b[task] for task in tasks]),
        difference=_mean(differences),
        low=low,
        high=high,
        p_value=p_value,
        better=better,
        worse=worse,
        same=len(tasks) - better - worse,
    )


def paired_t(differences: Sequence[float]) -> tuple[float, float, float]:
    """(low, high, two-sided p-value) of the mean difference; NaN where there is none."""
    count = len(differences)
    values = np.asarray(differences, dtype=np.float64)
    if count < 2 or np.ptp(values) <= SAME:
        return math.nan, math.nan, math.nan
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)
    half = t_quantile_975(count - 1) * error
    return mean - half, mean + half, 2 * (1 - t_distribution(abs(mean) / error, count - 1))


def sign_flip_p_value(differences: Sequence[float]) -> float | None:
    """The exact p-value, two-sided, that the mean difference is as large as this by chance.

    If A and B are alike, and both played each task as often, each difference could as well have the other
    sign: p is the share of the 2^T sign patterns whose sum is at least as far from 0 (Fisher's randomization
    test, The Design of Experiments, 1935, section 21). With differences of -1, 0 and 1 it is the exact test
    of McNemar. None: too many different values to count all patterns.
    """
    sizes = np.abs([d for d in differences if abs(d) > SAME])
    observed = abs(math.fsum(differences))
    grid = _on_a_grid(sizes.tolist())
    if grid is not None:
        return _p_on_grid(grid, observed / math.fsum(sizes) * sum(grid) if grid else 0.0)
    if sizes.size > _MOST_ENUMERATED:
        return None
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate((sums - size, sums + size))
    return float((np.abs(sums) >= observed - SAME).mean())


def _on_a_grid(sizes: Sequence[float]) -> list[int] | None:
    """The sizes in whole multiples of one unit; None when there is none, or too many steps of it."""
    fractions = [Fraction(size).limit_denominator(10_000) for size in sizes]
    if any(abs(fraction - Fraction(size)) > SAME for fraction, size in zip(fractions, sizes, strict=True)):
        return None
    unit = math.lcm(*(fraction.denominator for fraction in fractions)) if fractions else 1
    steps = [int(fraction * unit) for fraction in fractions]
    common = math.gcd(*steps) or 1
    steps = [step // common for step in steps]
    if sum(steps) > _LARGEST_GRID or sum(steps) * len(steps) > _MOST_STEPS:
        return None
    return steps


def _p_on_grid(steps: Sequence[int], observed: float) -> float:
    """The share of sign patterns of `steps` whose sum is at least `observed` from 0, by convolution."""
    total = sum(steps)
    chance = np.zeros(total + 1)
    """[total + 1] of the sum of those with a plus."""
    chance[0] = 1.0
    reached = 0
    for step in steps:
        shifted = chance[: reached + 1] * 0.5
        chance[: reached + 1] = shifted
        chance[step : reached + step + 1] += shifted
        reached += step
    far = np.abs(2 * np.arange(total + 1) - total) >= round(observed)
    return min(1.0, float(chance[far].sum()))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
