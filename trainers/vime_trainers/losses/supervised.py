"""Learning from tokens that somebody else wrote, and a critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from vime_trainers.losses.policy_gradient import masked


def sft_loss(log_probs: Tensor, mask: Tensor) -> Tensor:
    """`-l`, 0 where masked: maximum likelihood.

    For text of others. On the policy's own samples its expected gradient is 0.
    """
    return -masked(log_probs, mask)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, value_clip: float | None
) -> tuple[Tensor, Tensor]:
    """`max((V - G)^2, (clip(V, V_old - eps, V_old + eps) - G)^2) / 2`, as in PPO's implementations.

    Args:
        values: [num_tokens] the critic's, differentiable, of the state in which each token was sampled.
        old_values: [num_tokens] from when the returns were made.
        returns: [num_tokens] targets, see `vime_agents.learning.advantages.gae`.
        mask: [num_tokens] trainable tokens.
        value_clip: how far V may move from V_old; None: anywhere.

    Returns:
        The loss, 0 where masked, and where clipping took the gradient away; each `[num_tokens]`.
    """
    value, old, target = masked(values, mask), masked(old_values, mask), masked(returns, mask)
    loss = (value - target).square()
    clipped = torch.zeros_like(mask)
    if value_clip is not None:
        bounded = (old + (value - old).clamp(-value_clip, value_clip) - target).square()
        # Inside the bounds the two differ by rounding alone.
        clipped = (bounded > loss) & ((value - old).abs() > value_clip) & mask
        loss = torch.maximum(loss, bounded)
    return loss / 2, clipped
