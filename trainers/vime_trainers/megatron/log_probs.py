"""Log-probs and entropies of chosen tokens, out of hidden states and a vocabulary split over ranks.

Logits exist for one chunk of trainable tokens at a time: with more than one chunk, the backward pass computes
each chunk's logits again. float32 throughout.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    vocab_size: int,
    temperature: float,
    chunk_size: int,
    group: dist.ProcessGroup,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target, and the entropy of the distribution that it comes from; both [num_tokens].

    Args:
        hidden: [num_tokens, hidden] the last hidden state of the position before each target.
        weight: [vocabulary rows of this rank, hidden]; rows at and above `vocab_size` are padding.
        targets: [num_tokens] token ids.
        vocab_size: Of the whole model, without padding.
        temperature: Logits are divided by it.
        chunk_size: Tokens whose logits exist at the same time.
        group: Tensor-parallel ranks, over which the vocabulary is split.
        entropy_grad: Whether the entropy is differentiable.
    """
    arguments = (vocab_size, temperature, group, entropy_grad)
    if hidden.shape[0] <= chunk_size:
        return _chunk_log_probs(hidden, weight, targets, *arguments)
    parts = [
        checkpoint(_chunk_log_probs, h, weight, t, *arguments, use_reentrant=False)
        for h, t in zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True)
    ]
    log_probs, entropy = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropy)


def whole_hidden(hidden: Tensor, *, sequence_parallel: bool, group: dist.ProcessGroup) -> Tensor:
    """A stage's output [tokens (/ tp), 1, hidden] -> [tokens, hidden]; sums its gradient over `group`."""
    if sequence_parallel:
        hidden = gather_from_sequence_parallel_region(hidden, group=group)
    else:
        hidden = copy_to_tensor_model_parallel_region(hidden, group=group)
    return hidden.squeeze(1)


def whole_logits(
    hidden: Tensor, weight: Tensor, *, vocab_size: int, temperature: float, group: dist.ProcessGroup
) -> Tensor:
    """[num_tokens, vocab_size] float32 logits, divided by the temperature, on every tensor-parallel rank.

    For a loss that needs them whole; arguments as in `token_log_probs`.
    """
    logits = F.linear(hidden, weight).float()
    if group.size() > 1:
        logits = gather_from_tensor_model_parallel_region(logits, group=group)
    return logits[:, :vocab_size] / temperature


def _chunk_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab_size: int,
    temperature: float,
    group: dist.ProcessGroup,
    entropy_grad: bool,
) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight).float()
    if temperature != 1.0:
        logits = logits / temperature
    first = group.rank() * weight.shape[0]
    real_rows = min(max(vocab_size - first, 0), weight.shape[0])
    logits = logits[:, :real_rows]  # padding takes no part in the softmax
    top = logits.detach().amax(-1) if real_rows else logits.new_full((len(targets),), -torch.inf)
    if group.size() > 1:
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
    logits = logits - top[:, None]
    local = targets - first
    here = (local >= 0) & (local < real_rows)
    picked = logits.gather(1, local.clamp(0, max(real_rows - 1, 0))[:, None])[:, 0] * here
    exponentials = logits.exp()
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        weighted = torch.einsum("tv,tv->t", exponentials, logits)
    sums = torch.stack([exponentials.sum(-1), weighted, picked])
    if group.size() > 1:
        sums = reduce_from_tensor_model_parallel_region(sums, group=group)
    log_total = sums[0].log()
    entropy = log_total - sums[1] / sums[0]
    return sums[2] - log_total, entropy if entropy_grad else entropy.detach()
