"""Other ways than PPO's clip to stay near the policy that sampled. Pure functions, for losses of your own.

Tensors are [num_tokens]; masked entries may hold anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vime_trainers.losses.policy_gradient import log_ratio, masked


def sapo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Tensor:
    """`-A (4 / tau) sigmoid(tau (r - 1))`, `r = exp(l - l_old)`: a gate that closes softly on both sides.

    SAPO (arXiv:2511.20347). `tau` by the sign of A. On policy the gradient is REINFORCE's, -A.
    """
    advantages = masked(advantages, mask)
    ratio = log_ratio(log_probs, old_log_probs, mask)[0].exp()
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    return masked(-advantages * 4 / tau * torch.sigmoid(tau * (ratio - 1)), mask)


def dppo_keeps(
    log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, mask: Tensor, *, delta: float = 0.2
) -> Tensor:
    """Which tokens a bound on probabilities leaves in the loss: true unless the update would widen the gap.

    Dropped: A > 0 and p - p_rollout > delta, or A < 0 and p_rollout - p > delta. The binary total variation
    of DPPO: unlike a bound on the ratio it leaves rare tokens, whose ratio jumps while hardly any mass moves.
    """
    gap = masked(log_probs.detach(), mask).exp() - masked(rollout_log_probs, mask).exp()
    advantages = masked(advantages, mask)
    return mask & ~(((advantages > 0) & (gap > delta)) | ((advantages < 0) & (-gap > delta)))


def interpolated_log_probs(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    versions: Tensor,
    mask: Tensor,
    *,
    proximal_version: int,
    current_version: int,
) -> Tensor:
    """Log-probs of a policy between the one that sampled and the current one, without a forward pass.

    `l_rollout + alpha (l - l_rollout)`, `alpha = (v_proximal - v) / (v_current - v)`, detached: AReaL's
    approximation of the proximal policy in asynchronous training.

    Args:
        log_probs: of the current policy.
        rollout_log_probs: as they were sampled.
        versions: int, of the weights that sampled each token; where they are current, alpha is 1.
        mask: trainable tokens; the others get 0.
        proximal_version: of the weights that the update must stay near.
        current_version: of the weights of `log_probs`; not below the others.
    """
    age = current_version - versions
    alpha = torch.where(age > 0, (proximal_version - versions) / age.clamp(min=1), 1.0).clamp(0, 1)
    rollout = masked(rollout_log_probs, mask)
    return (rollout + masked(alpha * (masked(log_probs.detach(), mask) - rollout), mask)).detach()
