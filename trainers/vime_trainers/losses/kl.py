"""KL estimators from samples of the policy (Schulman, "Approximating KL divergence", 2020).

With `d = l - l_ref`, tokens sampled from the policy, and the estimator differentiated as a loss:

| estimator     | value              | expected value     | expected gradient         |
|---------------|--------------------|--------------------|---------------------------|
| k1            | d                  | KL(policy || ref)  | 0: for rewards, metrics   |
| k2            | d^2 / 2            | close to KL        | that of KL(policy || ref) |
| k3            | exp(-d) - 1 + d    | KL(policy || ref)  | that of KL(ref || policy) |
| k3+           | that of k3         | KL(policy || ref)  | that of KL(policy || ref) |
| r k1, r k3    | ratio times k1, k3 | KL(policy || ref)  | that of KL(policy || ref) |

The last row has `r = exp(l - l_old)`, differentiable: right for tokens of an older policy too, and no no-op
where r = 1, since its gradient is not 0 there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vime_trainers.losses.policy_gradient import log_ratio


def k1(log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """`d`, 0 where masked."""
    return log_ratio(log_probs, reference, mask)[0]


def k2(log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """`d^2 / 2`, 0 where masked."""
    return log_ratio(log_probs, reference, mask)[0].square() / 2


def k3(log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """`exp(-d) - 1 + d`, 0 where masked; never negative."""
    difference = log_ratio(log_probs, reference, mask)[0]
    return torch.expm1(-difference) + difference


def k3_plus(log_probs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2 (straight-through), 0 where masked."""
    gradient = k2(log_probs, reference, mask)
    return gradient + (k3(log_probs, reference, mask) - gradient).detach()


def ratio_weighted(
    estimator: Callable[[Tensor, Tensor, Tensor], Tensor],
    log_probs: Tensor,
    old_log_probs: Tensor,
    reference: Tensor,
    mask: Tensor,
) -> Tensor:
    """`exp(l - l_old)` times k1 or k3, 0 where masked: DeepSeek-V3.2's unbiased KL."""
    ratio = log_ratio(log_probs, old_log_probs, mask)[0].exp()
    return ratio * estimator(log_probs, reference, mask)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3+": k3_plus,
}


def penalised(advantages: Tensor, log_probs: Tensor, reference: Tensor, mask: Tensor, coef: float) -> Tensor:
    """`A - coef sg[d]`, 0 where masked: KL(policy || ref) in the reward, each token for itself.

    With a teacher for the reference this is on-policy distillation by reverse KL (arXiv:2306.13649; Lu 2025,
    "On-policy distillation"): put into the loss instead, `d` would have no expected gradient.
    """
    shaped = advantages - coef * k1(log_probs, reference, mask).detach()
    return torch.where(mask, shaped, shaped.new_zeros(()))
