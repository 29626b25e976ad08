"""Group sequence policy optimization: one probability ratio for each row."""

from __future__ import annotations

from torch import Tensor

from vime_trainers.losses.policy_gradient import LOG_RATIO_LIMIT, clip_objective, masked
from vime_trainers.losses.rows import Rows


def gspo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    rows: Rows,
    *,
    eps_clip: float,
    eps_clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's clipped loss with `s = exp(mean over the row's trainable tokens of l - l_old)` for the ratio.

    GSPO, arXiv:2507.18071, in its token form `sg[s] exp(l - sg[l])`: the same value at every token
    of the row, and, summed over a row's M tokens with weights 1 / M, the gradient of the sequence form. Its
    bounds are far narrower than PPO's: 3e-4 and 4e-4 in the paper.

    Returns:
        The loss, the ratio, and where clipping took the gradient away; each `[num_tokens]`.
    """
    current = masked(log_probs, mask)
    gap = (current - masked(old_log_probs, mask)).detach()
    sequence = rows.mean(gap, mask).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    ratio = sequence * (current - current.detach()).exp()
    loss, clipped = clip_objective(
        ratio, advantages, mask, eps_clip=eps_clip, eps_clip_high=eps_clip_high, dual_clip=dual_clip
    )
    return loss, ratio, clipped
