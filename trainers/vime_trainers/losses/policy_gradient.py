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
    difference = masked(log_probs, mask) - masked(reference, mask)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), difference.abs() > LOG_RATIO_LIMIT


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values`, 0 where masked."""
    return torch.where(mask, values, values.new_zeros(()))


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """`-A l` (Williams 1992): the score-function gradient."""
    return -masked(advantages, mask) * masked(log_probs, mask)


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
    ratio = log_ratio(log_probs, old_log_probs, mask)[0].exp()
    loss, clipped = clip_objective(
        ratio, advantages, mask, eps_clip=eps_clip, eps_clip_high=eps_clip_high, dual_clip=dual_clip
    )
    return loss, ratio, clipped


def clip_objective(
    ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped loss of a ratio, however that was made, and where the gradient was taken away."""
    advantages = masked(advantages, mask)
    plain = -ratio * advantages
    bounded = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    loss = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        hit = (advantages < 0) & (loss > ceiling)
        loss = torch.where(hit, ceiling, loss)
        clipped = clipped | hit
    return masked(loss, mask), clipped & mask


def cispo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`-sg[clip(r, 1 - eps, 1 + eps_high)] A l`: a clipped token keeps a bounded gradient.

    MiniMax-M1, arXiv:2506.13585, whose bound is the upper one alone: `eps_clip = 1`. Bounds are distances
    from 1, as in slime and verl; TRL's `epsilon_high` is the bound itself.

    Returns:
        The loss, the ratio, and where it was clipped; each `[num_tokens]`.
    """
    ratio = log_ratio(log_probs, old_log_probs, mask)[0].exp().detach()
    weight = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return weight * reinforce_loss(log_probs, advantages, mask), ratio, weight != ratio
