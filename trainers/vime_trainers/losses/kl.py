"""KL estimators from samples of the policy (Schulman, "Approximating KL divergence", 2020).

With `d = l - l_ref`, tokens sampled from the policy, and the estimator differentiated as a loss:

| estimator | value          | expected value     | expected gradient        |
|-----------|----------------|--------------------|--------------------------|
| k1        | d              | KL(policy || ref)  | 0: for metrics only      |
| k2        | d^2 / 2        | close to KL        | that of KL(policy || ref) |
| k3        | exp(-d) - 1 + d | KL(policy || ref) | that of KL(ref || policy) |
"""

from __future__ import annotations

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
