"""Trajectories of one group -> the advantage of each token: how much of the rewards it answers for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vime_agents.episode import Trajectory
from vime_agents.errors import ConfigError
from vime_agents.learning.advantages import (
    Advantages,
    Estimator,
    compares_nothing,
    discounted_returns,
    gae,
    no_baseline,
    opo,
    token_rewards,
)

Rows = list[NDArray[np.float64]]
"""[num_tokens] for each segment of a trajectory, 0 where masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """By default every token answers for the whole reward of its trajectory."""

    use_turn_rewards: bool = False
    """A token answers only for the rewards of its own turn and of later ones, and is compared with the same
    turn of the other episodes that came so far. Each turn's reward counts where it was earned; what the
    trajectory's reward has beyond their sum is earned in its last turn."""
    turn_gamma: float = 1.0
    """Discount from a turn to the next one."""
    gamma: float = 1.0
    """Discount from a trainable token to the next one; for a critic and without a baseline."""


RowKey = tuple[str, str, int]
"""Episode, agent, segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticEstimator:
    """Generalised advantage estimation against a critic, over the trainable tokens of a trajectory alone."""

    values: Mapping[RowKey, NDArray[np.floating]]
    """[num_tokens + 1] of each row: the critic's V of the state in which each token was sampled, read where
    trainable, and last the V of the state after the whole row."""
    lambd: float = 1.0
    """0: one-step errors; 1: returns minus values."""
    bootstrap_truncated: bool = False
    """What follows an episode that was cut is worth what the critic says; otherwise nothing."""
    compares_nothing = True

    def __call__(self, rewards: Sequence[float]) -> Advantages:
        """Rewards alone are not enough: see `critic_advantages`."""
        raise ConfigError("a critic's advantages need its values: call critic_advantages")


def group_advantages(trajectories: Sequence[Trajectory], estimator: Estimator, credit: Credit) -> list[Rows]:
    """The rows of each trajectory of a group, all with trusted rewards."""
    if credit.gamma != 1.0 and estimator is no_baseline:
        return [_token_returns(t, credit) for t in trajectories]
    if estimator is opo:
        estimator = partial(
            opo, lengths=[sum(int(s.loss_mask.sum()) for s in t.segments) for t in trajectories]
        )
    if credit.use_turn_rewards:
        return _by_turn(trajectories, estimator, credit)
    advantages = estimate(estimator, [_reward(t) for t in trajectories])
    return [
        [np.where(s.loss_mask, advantage, 0.0) for s in t.segments]
        for t, advantage in zip(trajectories, advantages, strict=True)
    ]


def estimate(estimator: Estimator, rewards: Sequence[float]) -> NDArray[np.float64]:
    """The estimator's advantages; 0 for one that has nobody to compare with.

    Raises:
        ConfigError: it does not return one finite number for each reward.
    """
    if len(rewards) < 2 and not compares_nothing(estimator):
        return np.zeros(len(rewards))
    advantages = np.asarray(estimator(rewards))
    if advantages.shape != (len(rewards),) or not np.isfinite(advantages).all():
        raise ConfigError(
            f"--advantage-estimator made {advantages!r} of the rewards {list(rewards)}: it must return one "
            "finite number for each"
        )
    return advantages


def turn_returns(trajectory: Trajectory, gamma: float) -> NDArray[np.float64]:
    """[num_turns] `Q_k = r_k + gamma Q_{k+1}`."""
    rewards = _turn_rewards(trajectory)
    return discounted_returns(rewards, np.ones(rewards.size, np.bool_), gamma)


def _by_turn(trajectories: Sequence[Trajectory], estimator: Estimator, credit: Credit) -> list[Rows]:
    returns = [turn_returns(t, credit.turn_gamma) for t in trajectories]
    reached: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for member, trajectory in enumerate(trajectories):
        for position, turn in enumerate(trajectory.turns):
            reached[turn.index].append((member, position))
    advantages = [np.zeros(r.size) for r in returns]
    for places in reached.values():
        estimated = estimate(estimator, [float(returns[m][p]) for m, p in places])
        for (member, position), advantage in zip(places, estimated, strict=True):
            advantages[member][position] = advantage
    return [_spread(t, a) for t, a in zip(trajectories, advantages, strict=True)]


def _spread(trajectory: Trajectory, advantages: NDArray[np.float64]) -> Rows:
    """Each turn's advantage to its trainable tokens."""
    of_turn = {turn.index: a for turn, a in zip(trajectory.turns, advantages, strict=True)}
    rows = [np.zeros(len(s)) for s in trajectory.segments]
    for segment, start, end, turn in _steps(trajectory):
        rows[segment][start:end] = of_turn[turn]
    return rows


def critic_advantages(
    trajectory: Trajectory,
    values: Sequence[NDArray[np.floating]],
    credit: Credit,
    *,
    lambd: float = 1.0,
    truncated: bool = False,
) -> tuple[Rows, Rows]:
    """Advantages and value targets of a trajectory's rows.

    The tokens are one stream in the order in which they were sampled, however many rows hold them.

    Args:
        trajectory: With a trusted reward.
        values: [num_tokens + 1] of each segment, as `CriticEstimator.values`.
        credit: Discounts, and where the rewards are earned.
        lambd: Of generalised advantage estimation.
        truncated: What follows is worth the value after the row that was sampled from last.
    """
    steps = _steps(trajectory)
    if not steps:
        return _scattered(trajectory, [], np.zeros(0)), _scattered(trajectory, [], np.zeros(0))
    rewards, discounts = _stream(trajectory, steps, credit)
    read = np.concatenate([values[segment][start:end] for segment, start, end, _ in steps])
    found = gae(
        rewards,
        read,
        np.ones(read.size, np.bool_),
        gamma=discounts,
        lambd=lambd,
        bootstrap=float(values[steps[-1][0]][-1]) if truncated else 0.0,
    )
    advantages, returns = (_scattered(trajectory, steps, stream) for stream in found)
    return advantages, returns


def _token_returns(trajectory: Trajectory, credit: Credit) -> Rows:
    steps = _steps(trajectory)
    if not steps:
        return _scattered(trajectory, [], np.zeros(0))
    rewards, discounts = _stream(trajectory, steps, credit)
    returns = discounted_returns(rewards, np.ones(rewards.size, np.bool_), discounts)
    return _scattered(trajectory, steps, returns)


def _stream(
    trajectory: Trajectory, steps: Sequence[tuple[int, int, int, int]], credit: Credit
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[num_steps] rewards of the trainable tokens in order, and the discounts from each to the next."""
    turn_of = np.concatenate([np.full(end - start, turn) for _, start, end, turn in steps])
    everything = np.ones(turn_of.size, np.bool_)
    if credit.use_turn_rewards:
        ends = [int(np.searchsorted(turn_of, t.index, side="right")) for t in trajectory.turns]
        rewards = token_rewards(everything, 0.0, turn_ends=ends, turns=_turn_rewards(trajectory))
    else:
        rewards = token_rewards(everything, _reward(trajectory))
    discounts = np.full(turn_of.size, credit.gamma)
    discounts[:-1][np.diff(turn_of) > 0] *= credit.turn_gamma
    return rewards, discounts


def _scattered(
    trajectory: Trajectory, steps: Sequence[tuple[int, int, int, int]], stream: NDArray[np.float64]
) -> Rows:
    """Back from the stream to the rows."""
    rows, position = [np.zeros(len(s)) for s in trajectory.segments], 0
    for segment, start, end, _ in steps:
        rows[segment][start:end] = stream[position : position + end - start]
        position += end - start
    return rows


def _steps(trajectory: Trajectory) -> list[tuple[int, int, int, int]]:
    """(segment, start, end, turn) of the trainable spans, in the order in which they were sampled."""
    found = [
        (index, span.start, span.end, span.turn)
        for index, segment in enumerate(trajectory.segments)
        for span in segment.spans
        if span.trainable
    ]
    return sorted(found, key=lambda step: (step[3], step[0], step[1]))


def _turn_rewards(trajectory: Trajectory) -> NDArray[np.float64]:
    """[num_turns] that add up to the trajectory's reward."""
    rewards = np.array([t.reward for t in trajectory.turns], np.float64)
    rewards[-1:] += _reward(trajectory) - rewards.sum()
    return rewards


def _reward(trajectory: Trajectory) -> float:
    value = trajectory.reward.value
    assert value is not None
    return value
