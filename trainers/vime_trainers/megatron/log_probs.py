"""Log-probs and entropies of chosen tokens, out of hidden states and a vocabulary split over ranks.

Logits exist for one chunk of trainable tokens at a time: with more than one chunk, the backward pass computes
each chunk's logits again. float32 throughout.
"""

from __future__ import annotations

import itertools

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
    top_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-prob of each target, and the entropy of the distribution that it comes from; both [num_tokens].

    And, with `top_ids`, [num_tokens, N + 1] the log-probs of these and, last, of all others together.

    Args:
        hidden: [num_tokens, hidden] the last hidden state of the position before each target.
        weight: [vocabulary rows of this rank, hidden]; rows at and above `vocab_size` are padding.
        targets: [num_tokens] token ids.
        vocab_size: Of the whole model, without padding.
        temperature: Logits are divided by it.
        chunk_size: Tokens whose logits exist at the same time.
        group: Tensor-parallel ranks, over which the vocabulary is split.
        entropy_grad: Whether the entropy is differentiable.
        top_ids: [num_tokens, N] no id twice in a row.
    """
    arguments = (vocab_size, temperature, group, entropy_grad)
    if hidden.shape[0] <= chunk_size:
        return _chunk_log_probs(hidden, weight, targets, top_ids, *arguments)
    chunks = zip(
        hidden.split(chunk_size),
        targets.split(chunk_size),
        itertools.repeat(None) if top_ids is None else top_ids.split(chunk_size),
        strict=False,
    )
    parts = [
        checkpoint(_chunk_log_probs, h, weight, t, top, *arguments, use_reentrant=False)
        for h, t, top in chunks
    ]
    log_probs, entropy, tops = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropy), None if top_ids is None else torch.cat(tops)


@torch.no_grad()
def top_k_log_probs(
    hidden: Tensor,
    weight: Tensor,
    k: int,
    *,
    vocab_size: int,
    num_candidates: int,
    temperature: float,
    chunk_size: int,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens after each hidden state, likeliest first; arguments as in `token_log_probs`.

    Each rank finds its own k, and the k best of these are taken: [chunk, vocabulary / ranks] logits exist at
    a time, and [chunk, k * ranks] are exchanged.

    `k` is at most `num_candidates`: only tokens below that are among the k, and others count to the rest.

    Returns:
        Ids, [num_tokens, k] int64, and [num_tokens, k + 1] their log-probs and that of all others together.
    """
    parts = [
        _chunk_top_k(chunk, weight, k, vocab_size, num_candidates, temperature, group)
        for chunk in hidden.split(chunk_size)
    ]
    ids, log_probs = zip(*parts, strict=True)
    return torch.cat(ids), torch.cat(log_probs)


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


def _local_logits(
    hidden: Tensor, weight: Tensor, vocab_size: int, temperature: float, group: dist.ProcessGroup
) -> tuple[Tensor, int]:
    """[num_tokens, real rows of this rank] float32 logits, and the token id of the first of them."""
    logits = F.linear(hidden, weight).float()
    if temperature != 1.0:
        logits = logits / temperature
    first = group.rank() * weight.shape[0]
    real_rows = min(max(vocab_size - first, 0), weight.shape[0])
    return logits[:, :real_rows], first  # padding takes no part in the softmax


def _largest(logits: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[num_tokens] over all ranks, detached."""
    largest = logits.new_full((len(logits),), -torch.inf)
    if logits.shape[1]:
        largest = logits.detach().amax(-1)
    if group.size() > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return largest


def _chunk_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    top_ids: Tensor | None,
    vocab_size: int,
    temperature: float,
    group: dist.ProcessGroup,
    entropy_grad: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    logits, first = _local_logits(hidden, weight, vocab_size, temperature, group)
    logits = logits - _largest(logits, group)[:, None]
    chosen = targets[:, None] if top_ids is None else torch.cat([targets[:, None], top_ids], 1)
    picked = _picked(logits, chosen - first)
    exponentials = logits.exp()
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        weighted = torch.einsum("tv,tv->t", exponentials, logits)
    parts = [exponentials.sum(-1), weighted, *picked.unbind(1)]
    if top_ids is not None:
        parts.append(exponentials.masked_fill(_marked(logits, top_ids - first), 0.0).sum(-1))
    sums = torch.stack(parts)
    if group.size() > 1:
        sums = reduce_from_tensor_model_parallel_region(sums, group=group)
    log_total = sums[0].log()
    entropy = log_total - sums[1] / sums[0]
    tops = None
    if top_ids is not None:
        # A rest that is 0 is exactly that, or too little to count; the clamp keeps its gradient finite.
        rest = sums[-1]
        log_rest = rest.clamp(min=torch.finfo(rest.dtype).tiny).log()
        log_rest = torch.where(rest > 0, log_rest, rest.new_full((), -torch.inf))
        tops = (torch.cat([sums[3:-1], log_rest[None]]) - log_total).T
    return sums[2] - log_total, entropy if entropy_grad else entropy.detach(), tops


def _picked(logits: Tensor, columns: Tensor) -> Tensor:
    """[num_tokens, n] the logits at `columns` [num_tokens, n], 0 where these are another rank's."""
    here = (columns >= 0) & (columns < logits.shape[1])
    if not logits.shape[1]:
        return logits.new_zeros(columns.shape)
    return logits.gather(1, columns.clamp(0, logits.shape[1] - 1)) * here


def _marked(logits: Tensor, columns: Tensor) -> Tensor:
    """[num_tokens, columns of logits] true at `columns` [num_tokens, n] that are this rank's."""
    width = logits.shape[1]
    inside = torch.where((columns >= 0) & (columns < width), columns, width)
    marks = torch.zeros((len(logits), width + 1), dtype=torch.bool, device=logits.device)
    return marks.scatter_(1, inside, True)[:, :width]


def _chunk_top_k(
    hidden: Tensor,
    weight: Tensor,
    k: int,
    vocab_size: int,
    num_candidates: int,
    temperature: float,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:
    logits, first = _local_logits(hidden, weight, vocab_size, temperature, group)
    candidates = logits[:, : max(num_candidates - first, 0)]
    best, ids = candidates.topk(min(k, candidates.shape[1]))
    missing = k - best.shape[1]
    best, ids = F.pad(best, (0, missing), value=-torch.inf), F.pad(ids + first, (0, missing))
    if group.size() > 1:
        best, where = _gathered(best, group).topk(k)
        ids = _gathered(ids, group).gather(1, where)
    rest = logits.masked_fill(_marked(logits, ids - first), -torch.inf)
    # Relative to its own largest: the rest of a teacher that is very sure must not become 0.
    largest = _largest(rest, group)
    base = torch.where(largest.isneginf(), 0.0, largest)
    sums = torch.stack([(logits - best[:, :1]).exp().sum(-1), (rest - base[:, None]).exp().sum(-1)])
    if group.size() > 1:
        dist.all_reduce(sums, group=group)
    log_total = sums[0].log() + best[:, 0]
    log_rest = sums[1].log() + base
    return ids, torch.cat([best, log_rest[:, None]], 1) - log_total[:, None]


def _gathered(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[num_tokens, n * ranks] the values of all ranks."""
    parts = [torch.empty_like(values) for _ in range(group.size())]
    dist.all_gather(parts, values.contiguous(), group=group)
    return torch.cat(parts, 1)
