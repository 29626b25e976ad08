"""Log-probs and entropy out of whole logits: the plain form of `megatron.log_probs`."""

from __future__ import annotations

import torch
from torch import Tensor


def log_probs_and_entropy(
    logits: Tensor, targets: Tensor, *, temperature: float = 1.0, vocab_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of its distribution, nats, both [num_tokens] and differentiable.

    The entropy is that of the whole distribution. `-p log p` of the sampled token alone is no estimate of it,
    and the gradient of `-log p` of that token is 0 in expectation.

    Args:
        logits: [num_tokens, vocabulary]
        targets: [num_tokens] token ids.
        temperature: The logits are divided by it, never the log-probs.
        vocab_size: Entries at and above it are padding and take no part; None: there are none.
    """
    precise = logits if logits.dtype == torch.float64 else logits.float()
    table = torch.log_softmax(precise[:, :vocab_size] / temperature, dim=-1)
    # A token that cannot be sampled has log-prob -inf: 0 * -inf is NaN, but its share of the entropy is 0.
    finite = torch.where(table.isneginf(), torch.zeros_like(table), table)
    return table.gather(-1, targets[:, None])[:, 0], -(table.exp() * finite).sum(-1)


def top_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """[num_tokens, N + 1] log-probs of N tokens and, last, of all others together; differentiable.

    Args:
        logits: [num_tokens, vocabulary], already divided by the temperature.
        ids: [num_tokens, N] no id twice in a row. Where they are the whole vocabulary, the rest is -inf.
    """
    table = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
    rest = table.scatter(-1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([table.gather(-1, ids), rest], dim=-1)
