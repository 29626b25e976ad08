"""Importance weights that correct for the engine and the trainer not being the same policy. All detached."""

from __future__ import annotations

import torch
from torch import Tensor

from vime_trainers.losses.policy_gradient import log_ratio


def token_tis(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, clip: float
) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling per token: `min(exp(l_old - l_rollout), clip)`.

    Truncation: Ionides 2008; between the engine that samples and the trainer: Yao et al. 2025, "Your
    efficient RL framework secretly brings you off-policy RL training".

    Returns:
        The weights, 1 where masked, and where they were truncated; each `[num_tokens]`.
    """
    ratio = log_ratio(old_log_probs.detach(), rollout_log_probs, mask)[0].exp()
    return ratio.clamp(max=clip).where(mask, ratio.new_ones(())), (ratio > clip) & mask


def effective_sample_share(total: float, total_of_squares: float, count: float) -> float:
    """`(sum w)^2 / (n sum w^2)` (Kish 1965): 1 when all weights are equal, 1/n when one outweighs all."""
    return total**2 / (count * total_of_squares)


def abs_difference(log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """`|l - l_rollout|`, 0 where masked: how far trainer and engine are apart."""
    zero = log_probs.new_zeros(())
    return (torch.where(mask, log_probs, zero) - torch.where(mask, rollout_log_probs, zero)).abs()
