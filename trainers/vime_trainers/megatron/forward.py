"""Micro-batches through megatron-core's schedules: forward only, or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from vime_trainers.batching.pack import MicroBatch
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.families import ModelShape
from vime_trainers.megatron.log_probs import (
    token_log_probs,
    top_k_log_probs,
    whole_hidden,
    whole_logits,
)
from vime_trainers.megatron.micro_batches import packed_rows
from vime_trainers.megatron.model import PolicyModel

OnLastStage = Callable[[MicroBatch, Tensor], Tensor]
"""(micro-batch, its hidden states) -> loss, or anything differentiable of no size when only forward."""


def run_micro_batches(
    parts: Sequence[Any],
    micro_batches: Sequence[MicroBatch],
    on_last_stage: OnLastStage,
    *,
    forward_only: bool,
    num_batch_rows: int = 1,
) -> None:
    """Run every micro-batch; gradients are added up in the model's buffers and reduced over ranks.

    `parts`: of the model on this rank, wrapped or not; more than one with a virtual pipeline.
    `num_batch_rows`: of all micro-batches of all ranks, over which the experts' balance loss is a mean.
    """

    def forward(iterator: Any, chunk: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        micro_batch = next(iterator)
        hidden = chunk(
            input_ids=micro_batch.input_ids,
            position_ids=None,  # RoPE counts from the start of each packed row
            attention_mask=None,
            packed_seq_params=packed_rows(micro_batch, num_batch_rows),
        )
        return hidden, partial(finish, micro_batch)

    def finish(micro_batch: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        count = torch.tensor(micro_batch.selected.numel(), dtype=torch.int, device=hidden.device)
        return on_last_stage(micro_batch, hidden), count, {}

    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=[iter(micro_batches) for _ in parts] if len(parts) > 1 else iter(micro_batches),
        model=list(parts),
        num_microbatches=len(micro_batches),
        seq_length=micro_batches[0].input_ids.shape[1],  # unused: shapes travel with the data
        micro_batch_size=1,
        forward_only=forward_only,
    )


def selected_log_probs(
    model: PolicyModel,
    config: MegatronConfig,
    shape: ModelShape,
    micro_batch: MicroBatch,
    hidden: Tensor,
    *,
    temperature: float,
    entropy_grad: bool = False,
    top_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `token_log_probs`, of a micro-batch's selected targets, from the last stage's hidden states."""
    rows, group = _selected_rows(config, micro_batch, hidden)
    return token_log_probs(
        rows,
        model.output_weight(),
        micro_batch.targets,
        vocab_size=shape.vocab_size,
        temperature=temperature,
        chunk_size=config.log_probs_chunk_size,
        group=group,
        entropy_grad=entropy_grad,
        top_ids=top_ids,
    )


def selected_top_k(
    model: PolicyModel,
    config: MegatronConfig,
    shape: ModelShape,
    micro_batch: MicroBatch,
    hidden: Tensor,
    k: int,
    *,
    temperature: float,
    num_candidates: int,
) -> tuple[Tensor, Tensor]:
    """As `top_k_log_probs`, in the places of a micro-batch's selected targets."""
    rows, group = _selected_rows(config, micro_batch, hidden)
    return top_k_log_probs(
        rows,
        model.output_weight(),
        k,
        vocab_size=shape.vocab_size,
        num_candidates=num_candidates,
        temperature=temperature,
        chunk_size=config.log_probs_chunk_size,
        group=group,
    )


def selected_logits(
    model: PolicyModel,
    config: MegatronConfig,
    shape: ModelShape,
    micro_batch: MicroBatch,
    hidden: Tensor,
    *,
    temperature: float,
) -> Tensor:
    """[num_selected, vocabulary] logits of a micro-batch's selected targets, all at once."""
    rows, group = _selected_rows(config, micro_batch, hidden)
    return whole_logits(
        rows,
        model.output_weight(),
        vocab_size=shape.vocab_size,
        temperature=temperature,
        group=group,
    )


def _selected_rows(
    config: MegatronConfig, micro_batch: MicroBatch, hidden: Tensor
) -> tuple[Tensor, dist.ProcessGroup]:
    """[num_selected, hidden] before the selected targets; and the ranks that share the weights."""
    group = parallel_state.get_tensor_model_parallel_group()
    rows = whole_hidden(hidden, sequence_parallel=config.sequence_parallel, group=group)
    return rows[micro_batch.selected], group
