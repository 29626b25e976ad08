"""Mixture of experts over packed rows: the router, and a balance loss that does not depend on the packing.

A row is one token sequence. Its balance loss is that of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2):
`E / (K T^2) * sum over experts of (tokens that chose it) * (sum of all tokens' scores for it)`, of T tokens
that choose K of E experts each, with scores that sum to 1 over the experts. The batch's is the mean over its
rows, summed over the layers. Megatron-LM's own is that of a micro-batch: it changes with what else is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler, compute_routing_scores_for_aux_loss
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from vime_trainers.megatron.device import device


@dataclass
class PackedRows(PackedSeqParams):
    """Bounds of the rows of a micro-batch, and what the balance loss needs of them."""

    row_of_token: Tensor | None = None
    """[num_tokens] of this context-parallel rank: the row of each token, from 0; -1 for padding."""
    num_rows: int = 0
    """Rows of the micro-batch, on every context-parallel rank the same."""
    num_batch_rows: int = 1
    """Rows of the whole batch."""


class PackedRouter(TopKRouter):
    """Chooses the experts of each token; adds the balance loss's gradient if `moe_aux_loss_coeff` says so."""

    rows: PackedRows | None = None
    """Of the micro-batch that is being computed."""
    balance_loss: Tensor | float = 0.0
    """This rank's share, summed over micro-batches since `take_balance_loss`."""

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
        """Nothing is counted: the bias stays as it was loaded, so that trainer and engine choose alike."""

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights and map of the chosen experts, both [num_tokens, num_experts]."""
        weights, chosen = super().routing(logits, padding_mask=padding_mask)
        if self.config.moe_aux_loss_coeff and self.training and torch.is_grad_enabled():
            loss = self._balance_loss(logits.view(-1, self.config.num_moe_experts))
            self.balance_loss = self.balance_loss + loss.detach()
            weights = MoEAuxLossAutoScaler.apply(weights, self.config.moe_aux_loss_coeff * loss)
        return weights, chosen

    def _balance_loss(self, logits: Tensor) -> Tensor:
        """This rank's share: the scores of its own tokens, the choices of all ranks that share its rows."""
        rows = self.rows
        assert rows is not None
        assert rows.row_of_token is not None
        own = rows.row_of_token
        if self.config.sequence_parallel:
            own = own.chunk(self.tp_group.size())[self.tp_group.rank()]
        chosen, scores = compute_routing_scores_for_aux_loss(logits, self.topk, self.score_function)
        real = own >= 0
        table = logits.new_zeros(rows.num_rows, logits.shape[1], dtype=torch.float32)
        counts = table.index_add(0, own[real], chosen[real].float())
        totals = table.index_add(0, own[real], scores[real].float())
        dist.all_reduce(counts, group=self.tp_cp_group)
        lengths = counts.sum(1) / self.topk
        of_rows = (counts * totals).sum(1) * counts.shape[1] / (self.topk * lengths.clamp(min=1.0) ** 2)
        return of_rows.sum() / rows.num_batch_rows


def take_balance_loss(parts: Sequence[Any]) -> float:
    """The batch's balance loss, before its coefficient, on every rank; and start again from 0.

    It is computed where its gradient is, so it is that of one update; a layer that is computed a second time
    for the backward pass counts once.
    """
    routers = [m for part in parts for m in part.modules() if isinstance(m, PackedRouter)]
    total = torch.zeros((), dtype=torch.float64, device=device())
    for router in routers:
        total += router.balance_loss
        router.balance_loss = 0.0
    dist.all_reduce(total)  # each rank has its own tokens and layers
    return total.item()


class ExpertLayer(TransformerLayer):
    """A layer whose router knows which rows it is computing, also when it is computed a second time."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As `TransformerLayer.forward`."""
        router = getattr(self.mlp, "router", None)
        if router is not None:
            router.rows = kwargs.get("packed_seq_params")
        return super().forward(*args, **kwargs)
