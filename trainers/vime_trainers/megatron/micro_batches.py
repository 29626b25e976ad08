"""Rows -> this rank's micro-batches under Megatron's parallel state."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.core import parallel_state

from vime_trainers.batching.cost import RowCost
from vime_trainers.batching.pack import MicroBatch, pack
from vime_trainers.batching.plan import Plan, alignment, plan
from vime_trainers.batching.rows import Row
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.device import device
from vime_trainers.megatron.experts import PackedRows


def micro_batches(
    rows: Sequence[Row], config: MegatronConfig, cost: RowCost
) -> tuple[list[MicroBatch], Plan]:
    """This rank's, and the plan that they are part of.

    Raises:
        ConfigError: a row is longer than `max_tokens_per_gpu` allows.
    """
    cp_size = config.context_parallel_size
    layout = plan(
        rows,
        max_tokens=config.max_tokens_per_gpu * cp_size,
        num_ranks=parallel_state.get_data_parallel_world_size(),
        align=alignment(cp_size),
        cost=cost,
    )
    here = layout.ranks[parallel_state.get_data_parallel_rank()]
    mine = [_pack([rows[i] for i in indices], config) for indices in here]
    if parallel_state.get_virtual_pipeline_model_parallel_world_size() is not None:
        # Stages take turns in groups of as many micro-batches as there are stages.
        mine += [_pack([], config) for _ in range(-len(mine) % config.pipeline_model_parallel_size)]
    return mine, layout


def _pack(rows: Sequence[Row], config: MegatronConfig) -> MicroBatch:
    return pack(
        rows,
        cp_rank=parallel_state.get_context_parallel_rank(),
        cp_size=config.context_parallel_size,
        tp_size=config.tensor_model_parallel_size if config.sequence_parallel else 1,
        device=device(),
    )


def packed_rows(micro_batch: MicroBatch, num_batch_rows: int) -> PackedRows:
    """The bounds of its rows; of how many rows the whole batch is."""
    bounds, longest = micro_batch.bounds, micro_batch.longest
    return PackedRows(
        row_of_token=micro_batch.row_of_token,
        num_rows=micro_batch.num_rows,
        num_batch_rows=num_batch_rows,
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        cu_seqlens_q_padded=bounds,
        cu_seqlens_kv_padded=bounds,
        # The longest row, never the total: RoPE would take the pack for one row.
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
