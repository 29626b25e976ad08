"""Rewards of one trajectory -> returns and advantages of its tokens.

Time steps are the trainable tokens t_1 < ... < t_K alone. What the environment, a tool or a prompt wrote is
no step: nothing is discounted across it, and its values are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vime_agents.errors import RecordError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def token_rewards(
    mask: Mask, reward: float, *, turn_ends: Sequence[int] = (), turns: ArrayLike = ()
) -> Floats:
    """[num_tokens] the episode's reward on the last trainable token, and each turn's on its own last one.

    Args:
        mask: [num_tokens] trainable tokens.
        reward: of the whole episode, on top of the turns' own.
        turn_ends: one past the last token of each turn, ascending.
        turns: reward of each turn. It is put on the last trainable token before the turn's end; where there
            is none, nothing that is trained on can have caused it, and it is left out.

    Raises:
        RecordError: no trainable token, or `turns` and `turn_ends` of different lengths.
    """
    rewards = np.zeros(mask.shape, np.float64)
    steps = np.flatnonzero(mask)
    values = np.asarray(turns, np.float64)
    if not steps.size or values.shape != (len(turn_ends),):
        raise RecordError(
            f"{steps.size} trainable tokens, {len(turn_ends)} turn ends and rewards of shape {values.shape}"
        )
    for end, value in zip(turn_ends, values, strict=True):
        before = steps[steps < end]
        if before.size:
            rewards[before[-1]] += value
    rewards[steps[-1]] += reward
    return rewards


def discounted_returns(rewards: ArrayLike, mask: Mask, gamma: ArrayLike = 1.0) -> Floats:
    """[num_tokens] `G_k = r_k + gamma_k G_{k+1}` over trainable tokens; 0 where masked.

    Args:
        rewards: [num_tokens] read at trainable tokens alone.
        mask: [num_tokens] trainable tokens.
        gamma: of every step, or [num_tokens] of the step from each token to the next.
    """
    values = np.asarray(rewards, np.float64)
    discounts = np.broadcast_to(np.asarray(gamma, np.float64), mask.shape)
    returns, following = np.zeros(mask.shape, np.float64), 0.0
    for t in reversed(np.flatnonzero(mask)):
        following = values[t] + discounts[t] * following
        returns[t] = following
    return returns


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    mask: Mask,
    *,
    gamma: ArrayLike = 1.0,
    lambd: float = 1.0,
    bootstrap: float = 0.0,
) -> tuple[Floats, Floats]:
    """Generalised advantage estimation over trainable tokens, arXiv:1506.02438.

    `delta_k = r_k + gamma_k V_{k+1} - V_k`, `A_k = delta_k + gamma_k lambda A_{k+1}`.

    Args:
        rewards: [num_tokens] read at trainable tokens alone.
        values: [num_tokens] the critic's V of the state in which each token was sampled; likewise.
        mask: [num_tokens] trainable tokens.
        gamma: Discount of every step, or [num_tokens] of the step from each token to the next.
        lambd: 0: one-step errors; 1: returns minus values.
        bootstrap: Value after the last token: 0 when the episode terminated, the critic's when it was cut.

    Returns:
        Advantages, and returns `A + V` as the critic's target; [num_tokens], 0 where masked.
    """
    reward, value = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    discounts = np.broadcast_to(np.asarray(gamma, np.float64), mask.shape)
    advantages, following, next_value = np.zeros(mask.shape, np.float64), 0.0, bootstrap
    for t in reversed(np.flatnonzero(mask)):
        delta = reward[t] + discounts[t] * next_value - value[t]
        following = delta + discounts[t] * lambd * following
        advantages[t], next_value = following, value[t]
    return advantages, np.where(mask, advantages + np.where(mask, value, 0.0), 0.0)
