"""Group-relative advantages: rewards of the episodes of one group -> one advantage for each.

Notation: R_e reward of episode e, G episodes in the group, mean mu, standard deviation sigma. Every function
takes the rewards [G] of one group, each episode counted once, and returns advantages [G] (float64).
A group of one, and a group of equal rewards, give exactly 0: nothing can be learned from either. The one
exception is `no_baseline`, which compares nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ConfigError, RecordError, UnknownIdError
from vime_agents.registry import load_object

Advantages = NDArray[np.float64]
Estimator = Callable[[Sequence[float]], Advantages]

GRPO_EPSILON = 1e-6


def grpo(rewards: Sequence[float]) -> Advantages:
    """(R - mu) / (sigma + 1e-6), sigma with ddof = 1.

    DeepSeekMath, arXiv:2402.03300, eq. in section 4.1.2; ddof and epsilon as in the implementations of slime,
    verl and miles.
    """
    centred = dr_grpo(rewards)
    if not centred.any():
        return centred
    return centred / (np.std(np.asarray(rewards, np.float64), ddof=1) + GRPO_EPSILON)


def dr_grpo(rewards: Sequence[float]) -> Advantages:
    """R - mu: no division by the standard deviation. Dr.GRPO, arXiv:2503.20783."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.size < 2 or (values == values[0]).all():
        return np.zeros_like(values)
    return values - values.mean()


def rloo(rewards: Sequence[float]) -> Advantages:
    """R minus the mean of the other G - 1 rewards. RLOO, arXiv:2402.14740."""
    centred = dr_grpo(rewards)
    return centred * (centred.size / (centred.size - 1)) if centred.size > 1 else centred


def maxrl(rewards: Sequence[float]) -> Advantages:
    """(R - mu) / mu, and 0 where mu = 0: rare successes count more. MaxRL, arXiv:2602.02710.

    Raises:
        ConfigError: a negative reward.
    """
    if min(rewards, default=0.0) < 0:
        raise ConfigError(
            f"--advantage-estimator maxrl divides by the mean reward, so rewards must be >= 0, got "
            f"{min(rewards)}: shift the environment's rewards, or use grpo"
        )
    centred = dr_grpo(rewards)
    return centred / float(np.mean(rewards)) if centred.any() else centred


def opo(rewards: Sequence[float], lengths: Sequence[int] | None = None) -> Advantages:
    """R - sum(L R) / sum(L): the baseline weighs episodes by their trainable tokens. OPO, arXiv:2505.23585.

    Args:
        rewards: of the group's episodes.
        lengths: L, trainable tokens of each; None: all alike, which is `dr_grpo`.

    Raises:
        RecordError: not one length >= 0 for each reward, or all of them 0.
    """
    values = np.asarray(rewards, np.float64)
    weights = np.ones_like(values) if lengths is None else np.asarray(lengths, np.float64)
    if weights.shape != values.shape or (weights < 0).any() or (values.size and not weights.any()):
        raise RecordError(f"opo: {list(rewards)} rewards of episodes with {lengths} trainable tokens")
    if values.size < 2 or (values == values[0]).all():
        return np.zeros_like(values)
    return values - weights @ values / weights.sum()


def pass_at_k(rewards: Sequence[float]) -> Advantages:
    """Only the best episode counts, by how much it beats the second best; 0 for all others.

    The gradient of the largest reward of G episodes, with a leave-one-out baseline: arXiv:2503.19595.
    """
    values = np.asarray(rewards, np.float64)
    advantages = np.zeros_like(values)
    if values.size > 1:
        second, best = np.partition(values, -2)[-2:]
        advantages[values.argmax()] = best - second
    return advantages


def no_baseline(rewards: Sequence[float]) -> Advantages:
    """R as it is: episodes are compared with nothing but, after whitening, the whole batch."""
    return np.asarray(rewards, dtype=np.float64).copy()


ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "opo": opo,
    "pass_at_k": pass_at_k,
    "lite_ppo": dr_grpo,
    "reinforce_plus_plus": no_baseline,
    "reinforce_plus_plus_baseline": dr_grpo,
}

WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators whose advantages are whitened over the whole batch. REINFORCE++, arXiv:2501.03262."""


BATCH_SCALED = ("lite_ppo",)
"""Estimators whose advantages are divided by the standard deviation of the whole batch's rewards. LitePPO,
arXiv:2508.08221."""


def compares_nothing(estimator: Estimator) -> bool:
    """Whether an episode has an advantage without others in its group."""
    return estimator is no_baseline or getattr(estimator, "compares_nothing", False)


def get_estimator(name: str) -> Estimator:
    """An estimator by name, or by dotted path `module:function` with the same signature.

    Raises:
        UnknownIdError: with the nearest name. ConfigError: no such function.
    """
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    if ":" in name or "." in name:
        function = load_object(name, "--advantage-estimator")
        if not callable(function):
            raise ConfigError(f"--advantage-estimator {name!r} is not a function")
        return cast(Estimator, function)
    raise UnknownIdError("advantage estimator", name, ESTIMATORS)
