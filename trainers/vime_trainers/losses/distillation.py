"""Distillation by whole distributions instead of sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_reverse_kl(log_probs: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """`sum_j p_j (log p_j - log q_j)` over the teacher's N likeliest tokens and one bucket of all others.

    Reverse KL(student || teacher), differentiable through `p`: the on-policy divergence of Gu et al. 2023
    (MiniLLM, arXiv:2306.08543) and Agarwal et al. 2023 (GKD, arXiv:2306.13649) without the sampling noise of
    `l - l_teacher` of one token. The tokens are the teacher's, so that they are looked up once for all
    updates with a batch and no step of the student changes them.

    The bucket makes both sides distributions. The sum over the N tokens alone is none: it falls by moving
    mass away from all of them. Renormalised over the N, it would not see mass outside. With the bucket it is
    >= 0, 0 only where p and q agree on the N, and at most the whole divergence; what it misses is
    `p_rest KL(p within the rest || q within the rest)`, 0 where N is the vocabulary.

    Args:
        log_probs: [num_tokens, N + 1] of the student, the last column of all other tokens together.
        teacher: [num_tokens, N + 1] of the teacher, of the same tokens.
        mask: [num_tokens] trainable tokens; the others may hold anything.

    Returns:
        [num_tokens] nats, 0 where masked.
    """
    # What has no mass adds nothing, whatever the teacher says of it; 0 * inf would be NaN.
    counts = mask[:, None] & ~log_probs.isneginf()
    current, other = (torch.where(counts, x, x.new_zeros(())) for x in (log_probs, teacher))
    return torch.where(counts, current.exp() * (current - other), current.new_zeros(())).sum(-1)
