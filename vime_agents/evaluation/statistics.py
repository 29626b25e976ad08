"""Means with honest intervals, and pass@k. Pure functions, numpy only.

Notation: x_i the outcome of episode i of N, its task (cluster) c of C. Episodes of one task are not
independent: what is uncertain is which tasks were drawn, so every interval counts tasks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959963984540054
"""The normal distribution's 97.5 % point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    """NaN without data."""
    low: float
    """NaN where no interval can be given: fewer than two tasks, unless outcomes are 0/1."""
    high: float
    method: str
    """wilson, or clustered-t."""


def mean_interval(values: Sequence[float], clusters: Sequence[Hashable]) -> Interval:
    """The mean of `values` and its 95 % interval, clustered by task.

    0/1 outcomes: Wilson's score interval (Wilson 1927) on the effective number of episodes (Korn and
    Graubard 1998): N divided by how much more the clustered variance is than that of N independent
    episodes. Else: Student's t with C - 1 degrees of freedom on the clustered standard error.
    """
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values but {len(clusters)} clusters")
    outcomes = np.asarray(values, dtype=np.float64)
    num_clusters = len(set(clusters))
    if not outcomes.size:
        return Interval(mean=math.nan, low=math.nan, high=math.nan, method="clustered-t")
    mean = float(outcomes.mean())
    if np.isin(outcomes, (0.0, 1.0)).all():
        low, high = wilson(mean, _effective_size(outcomes.tolist(), clusters))
        return Interval(mean=mean, low=low, high=high, method="wilson")
    if num_clusters < 2:
        return Interval(mean=mean, low=math.nan, high=math.nan, method="clustered-t")
    half = t_quantile_975(num_clusters - 1) * clustered_standard_error(outcomes.tolist(), clusters)
    return Interval(mean=mean, low=mean - half, high=mean + half, method="clustered-t")


def wilson(share: float, num: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share out of `num` trials."""
    z2 = Z_95 * Z_95
    centre = (share + z2 / (2 * num)) / (1 + z2 / num)
    half = Z_95 / (1 + z2 / num) * math.sqrt(share * (1 - share) / num + z2 / (4 * num * num))
    # At 0 and 1 the bound is the share itself; rounding must not move it.
    return (0.0 if share == 0 else centre - half), (1.0 if share == 1 else centre + half)


def clustered_standard_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """sqrt(C / (C - 1) * sum over tasks of (sum over its episodes of (x_i - mean))^2) / N.

    The cluster-robust (CR1) error of a mean, as in Miller 2024, arXiv:2411.00640, section 2.2, with the
    usual correction for few clusters. With one episode a task it is the sample's standard error.
    """
    outcomes = np.asarray(values, dtype=np.float64)
    _, of_episode = _numbered(clusters)
    sums = np.bincount(of_episode, weights=outcomes - outcomes.mean())
    count = sums.size
    if count < 2:
        raise ValueError(f"a clustered error needs at least 2 clusters, got {count}")
    return math.sqrt(count / (count - 1) * float((sums**2).sum())) / outcomes.size


def pass_at_k(num: int, num_correct: int, k: int) -> float:
    """The chance that at least one of k episodes out of `num` is right: 1 - C(n - c, k) / C(n, k).

    Unbiased; Chen et al. 2021, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= k <= num or not 0 <= num_correct <= num:
        raise ValueError(f"needs 1 <= k <= n and 0 <= c <= n, got k={k}, n={num}, c={num_correct}")
    return 1.0 - math.comb(num - num_correct, k) / math.comb(num, k)


def mean_pass_at_k(values: Sequence[float], clusters: Sequence[Hashable], k: int) -> float | None:
    """Mean pass@k over the tasks with at least k episodes; None without one, or if outcomes are not 0/1."""
    outcomes = np.asarray(values, dtype=np.float64)
    if not outcomes.size or not np.isin(outcomes, (0.0, 1.0)).all():
        return None
    counts, of_episode = _numbered(clusters)
    right = np.bincount(of_episode, weights=outcomes)
    each = [pass_at_k(int(n), round(c), k) for n, c in zip(counts, right, strict=True) if n >= k]
    return float(np.mean(each)) if each else None


def t_quantile_975(degrees: int) -> float:
    """Student's 97.5 % point, by bisection of its distribution function; to 1e-7."""
    if degrees < 1:
        raise ValueError(f"needs at least 1 degree of freedom, got {degrees}")
    if degrees > 300:  # the first terms of its expansion about the normal's (Abramowitz and Stegun 26.7.5)
        z = Z_95
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low, high = Z_95, 12.8  # 12.706 at one degree; it falls towards the normal's
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_distribution(middle, degrees) < 0.975 else (low, middle)
    return (low + high) / 2


def t_distribution(t: float, degrees: int) -> float:
    """P(T <= t) for t >= 0: finite sums for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine2 = math.sin(angle), math.cos(angle) ** 2
    term, total = 1.0, 0.0
    start = 1 if degrees % 2 else 0
    for j in range(start, degrees - 1, 2):
        total += term
        term *= (j + 1) / (j + 2) * cosine2
    if degrees % 2:
        return 0.5 + (angle + sine * math.cos(angle) * total) / math.pi
    return 0.5 + sine * total / 2


def _effective_size(outcomes: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Independent 0/1 episodes that would tell as much."""
    num, num_clusters = len(outcomes), len(set(clusters))
    share = sum(outcomes) / num
    if num == num_clusters:
        return num
    if share in (0.0, 1.0) or num_clusters < 2:
        return num_clusters  # nothing shows how alike a task's episodes are: suppose they are copies
    independent = share * (1 - share) / num
    inflation = clustered_standard_error(outcomes, clusters) ** 2 / independent
    return num / max(inflation, 1.0)


def _numbered(clusters: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """(episodes of each cluster, cluster number of each episode)."""
    numbers: dict[Hashable, int] = {}
    of_episode = np.asarray([numbers.setdefault(c, len(numbers)) for c in clusters], dtype=np.int64)
    return np.bincount(of_episode), of_episode
