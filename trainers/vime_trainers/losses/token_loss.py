"""The per-token loss of an update, and the sums that its metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.corrections import abs_difference, token_tis
from vime_trainers.losses.kl import k2, k3
from vime_trainers.losses.policy_gradient import ppo_clip_loss, reinforce_loss

SUMS = (
    "loss",
    "pg_loss",
    "entropy",
    "kl_k3",
    "abs_diff",
    "ratio",
    "clipped",
    "tis_clipped",
    "is_weight",
    "is_weight_squared",
    "count",
)
"""Names of the sums of `TokenLoss.sums`, in order: sums over tokens, so that shards can be added."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of some tokens and what to report about them."""

    loss: Tensor
    """[] `sum of weights * f`, differentiable."""
    sums: Tensor
    """[len(SUMS)] float64, detached. `loss` and `pg_loss` are weighted as in the loss; the others are plain
    sums over tokens."""
    max_abs_diff: Tensor
    """[] largest |l - l_rollout|, detached."""


def token_loss(
    config: LossConfig,
    *,
    log_probs: Tensor,
    entropy: Tensor,
    rollout_log_probs: Tensor,
    advantages: Tensor,
    weights: Tensor,
) -> TokenLoss:
    """`sum of weights * f` over trainable tokens; every argument is [num_tokens >= 1]."""
    mask = torch.ones_like(log_probs, dtype=torch.bool)
    current = log_probs.detach()
    old = current if config.old_logprobs == "current" else rollout_log_probs
    ratio, clipped = torch.ones_like(current), torch.zeros_like(mask)
    if config.policy_loss == "ppo":
        policy, ratio, clipped = ppo_clip_loss(
            log_probs,
            old,
            advantages,
            mask,
            eps_clip=config.eps_clip,
            eps_clip_high=config.eps_clip_high,
            dual_clip=config.dual_clip,
        )
    else:
        policy = reinforce_loss(log_probs, advantages, mask)
    is_weight, truncated = token_tis(current, rollout_log_probs, mask, clip=config.tis_clip or float("inf"))
    if config.tis_clip is not None:
        policy = policy * is_weight
    loss = policy
    if config.entropy_coef:
        loss = loss - config.entropy_coef * entropy
    if config.kl_coef:
        estimator = k2 if config.kl_estimator == "k2" else k3
        loss = loss + config.kl_coef * estimator(log_probs, rollout_log_probs, mask)
    loss = (weights * loss).sum()
    difference = abs_difference(current, rollout_log_probs, mask)
    sums = (
        loss.detach(),
        (weights * policy.detach()).sum(),
        entropy.detach().sum(),
        # The tokens are samples of the rollout policy, so its log-probs come first.
        k3(rollout_log_probs, current, mask).sum(),
        difference.sum(),
        ratio.detach().sum(),
        clipped.sum(),
        truncated.sum(),
        is_weight.sum(),
        is_weight.double().square().sum(),
        mask.sum(),
    )
    return TokenLoss(loss, torch.stack([s.double() for s in sums]), difference.max())
