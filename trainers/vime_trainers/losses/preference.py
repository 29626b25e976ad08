"""Losses of pairs of replies, of which one is preferred. Pure functions, for training loops of your own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vime_trainers.losses.policy_gradient import masked


def preference_margin(
    chosen: Tensor,
    chosen_reference: Tensor,
    chosen_mask: Tensor,
    rejected: Tensor,
    rejected_reference: Tensor,
    rejected_mask: Tensor,
    *,
    mean: bool = False,
) -> Tensor:
    """`sum(l - l_ref) | chosen - sum(l - l_ref) | rejected`, over trainable tokens.

    Args:
        chosen: [num_pairs, num_tokens] log-probs of the preferred replies.
        chosen_reference: [num_pairs, num_tokens] of the frozen reference.
        chosen_mask: [num_pairs, num_tokens] trainable tokens; the others may hold anything.
        rejected: [num_pairs, other_num_tokens] and so on, of the other replies.
        rejected_reference: likewise.
        rejected_mask: likewise.
        mean: each reply's mean over its tokens instead of its sum, as IPO takes it.

    Returns:
        [num_pairs] float64: in float32 the sums of long replies can change the sign of their difference.
    """
    sides = (
        (chosen, chosen_reference, chosen_mask),
        (rejected, rejected_reference, rejected_mask),
    )
    sums = [
        (masked(log_probs.double(), mask) - masked(reference.double(), mask)).sum(-1)
        / (mask.sum(-1).clamp(min=1) if mean else 1)
        for log_probs, reference, mask in sides
    ]
    return sums[0] - sums[1]


def dpo_loss(margin: Tensor, *, beta: float) -> Tensor:
    """[num_pairs] `-log sigmoid(beta margin)`: Rafailov et al. 2023 (arXiv:2305.18290)."""
    return -F.logsigmoid(beta * margin)


def ipo_loss(margin: Tensor, *, beta: float) -> Tensor:
    """[num_pairs] `(margin - 1 / (2 beta))^2`, of a margin of means: Azar et al. 2023 (arXiv:2310.12036)."""
    return (margin - 1 / (2 * beta)).square()
