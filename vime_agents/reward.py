"""From what an author's `score` returned to a RewardResult."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping

import numpy as np

from vime_agents.episode import RewardResult
from vime_agents.errors import GraderError

Score = float | int | bool | Mapping[str, "float | tuple[float, float]"] | RewardResult
"""A number, components (`{"name": value}` with weight 1, or `{"name": (value, weight)}`), or the result."""


def reward_from_score(score: object, reward_range: tuple[float, float]) -> RewardResult:
    """Check and weigh what `score` returned.

    The value is the weighted sum of the components; weight 0 makes a component a metric.

    Raises:
        GraderError: not a number, NaN or infinite, or outside the declared range.
    """
    if isinstance(score, RewardResult):
        result = score
    elif isinstance(score, Mapping):
        components: dict[str, float] = {}
        weights: dict[str, float] = {}
        for name, part in score.items():
            if isinstance(part, tuple) and len(part) != 2:
                raise GraderError(f"{name} must be a number or (value, weight), got {part!r}")
            value, weight = part if isinstance(part, tuple) else (part, 1.0)
            components[name], weights[name] = _number(value, name), _number(weight, f"{name} weight")
        total = math.fsum(components[n] * weights[n] for n in components)
        result = RewardResult(value=total, components=components, weights=weights)
    else:
        value = _number(score, "score")
        result = RewardResult(value=value, components={"score": value}, weights={"score": 1.0})
    low, high = reward_range
    if result.value is not None and not low <= result.value <= high:
        raise GraderError(f"reward {result.value} is outside the declared range [{low}, {high}]")
    return result


def _number(value: object, name: str) -> float:
    # numbers.Real and np.bool_: what NumPy computes counts too.
    if not isinstance(value, (numbers.Real, np.bool_)) or not math.isfinite(value):
        raise GraderError(f"{name} must be a finite number, got {value!r}")
    return float(value)
