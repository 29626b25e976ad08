"""Per-token policy losses. Pure functions: tensors in, `[num_tokens]` losses out, no reduction.

Entries where `mask` is false may hold anything, NaN and infinities included: they are replaced before the
exponential, so that neither the value nor the gradient sees them (a product with 0 would not do: 0 * inf is
NaN).
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-this before `exp` (e^20 = 4.9e8, finite in every dtype used here)."""


def log_ratio(log_probs: Tensor, reference: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`clamp(log_probs - reference, -20, 20)`, 0 where masked, and which entries were clamped."""
    zero = log_probs.new_zeros(())
    difference = torch.where(mask, log_probs, zero) - torch.where(mask, reference, zero)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), difference.abs() > LOG_RATIO_LIMIT


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """`-A l` (Williams 1992): the score-function gradient."""
    zero = log_probs.new_zeros(())
    return -torch.where(mask, advantages, zero) * torch.where(mask, log_probs, zero)


def ppo_clip_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`-min(r A, clip(r, 1 - eps, 1 + eps_high) A)` with `r = exp(l - l_old)`.

    Clipping: Schulman et al. 2017 (PPO); asymmetric bounds: Yu et al. 2025 (DAPO, "clip-higher"); dual clip,
    `min(loss, -c A)` for A < 0: Ye et al. 2020.

    Returns:
        The loss, the ratio, and where clipping took the gradient away; each `[num_tokens]`.
    """
    zero = log_probs.new_zeros(())
    advantages = torch.where(mask, advantages, zero)
    ratio = log_ratio(log_probs, old_log_probs, mask)[0].exp()
    plain = -ratio * advantages
    bounded = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        hit = (advantages < 0) & (loss > ceiling)
        loss = torch.where(hit, ceiling, loss)
        clipped = clipped | hit
    return torch.where(mask, loss, zero), ratio, clipped & mask
