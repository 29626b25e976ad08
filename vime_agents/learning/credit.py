"""One trajectory's advantage -> the advantage of each of its trainable tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vime_agents.episode import Trajectory
from vime_agents.learning.advantages import discounted_returns, token_rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """How much of the reward a token answers for.

    By default for all of it: every token gets its trajectory's advantage `(R - baseline) / scale`. Otherwise
    token t gets `(G_t - baseline) / scale`, where its return `G_t` holds only the rewards that came after it,
    discounted. The baseline is the same for all tokens, so it favours none of them.
    """

    use_turn_rewards: bool = False
    """Each turn's reward counts where it was earned. What the episode's reward holds beyond their sum is
    earned at the end."""
    gamma: float = 1.0
    """Discount from a token to the next one; tokens of tools and prompts are no steps."""
    turn_gamma: float = 1.0
    """Further discount from a turn to the next one."""

    @property
    def is_uniform(self) -> bool:
        """Whether all tokens of a trajectory have the same advantage."""
        return not self.use_turn_rewards and self.gamma == self.turn_gamma == 1.0


def token_advantages(
    trajectory: Trajectory, advantage: float, scale: float, credit: Credit
) -> list[NDArray[np.float64]]:
    """[num_tokens] for each segment, 0 where masked.

    Args:
        trajectory: with a trusted reward.
        advantage: `(R - baseline) / scale` of the trajectory's reward R.
        scale: see `vime_agents.learning.advantages.scale_of`.
        credit: how the reward reaches the tokens.
    """
    rows = [np.where(s.loss_mask, advantage, 0.0) for s in trajectory.segments]
    steps = sorted(
        (span.turn, index, span.start, span.end)
        for index, segment in enumerate(trajectory.segments)
        for span in segment.spans
        if span.trainable
    )
    if credit.is_uniform or not steps:
        return rows
    total = trajectory.reward.value
    assert total is not None
    turn_of = np.concatenate([np.full(end - start, turn) for turn, _, start, end in steps])
    everything = np.ones(turn_of.size, np.bool_)
    earned = [t.reward for t in trajectory.turns] if credit.use_turn_rewards else []
    ends = [int(np.searchsorted(turn_of, t.index, side="right")) for t in trajectory.turns[: len(earned)]]
    rewards = token_rewards(everything, total - sum(earned), turn_ends=ends, turns=earned)
    discounts = np.full(turn_of.size, credit.gamma)
    discounts[:-1][np.diff(turn_of) > 0] *= credit.turn_gamma
    stream = advantage + (discounted_returns(rewards, everything, discounts) - total) / scale
    position = 0
    for _, index, start, end in steps:
        rows[index][start:end] = stream[position : position + end - start]
        position += end - start
    return rows
