"""Rows -> this rank's micro-batches under Megatron's parallel state."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams

from vime_trainers.batching.cost import RowCost
from vime_trainers.batching.pack import MicroBatch, pack
from vime_trainers.batching.plan import Plan, alignment, plan
from vime_trainers.batching.rows import Row
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.device import device


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
    mine = [
        pack(
            [rows[i] for i in indices],
            cp_rank=parallel_state.get_context_parallel_rank(),
            cp_size=cp_size,
            tp_size=config.tensor_model_parallel_size if config.sequence_parallel else 1,
            device=device(),
        )
        for indices in layout.ranks[parallel_state.get_data_parallel_rank()]
    ]
    return mine, layout


def packed_seq_params(micro_batch: MicroBatch) -> PackedSeqParams:
    """The bounds of its rows."""
    bounds, longest = micro_batch.bounds, micro_batch.longest
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        cu_seqlens_q_padded=bounds,
        cu_seqlens_kv_padded=bounds,
        # The longest row, never the total: RoPE would take the pack for one row.
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
