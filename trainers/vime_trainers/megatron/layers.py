"""The layers that megatron-core offers only through Transformer Engine, in plain torch: any device.

They make the "local" layer spec complete: RMSNorm that knows sequence parallelism, attention over packed rows
(`thd`) with context parallelism, and latent attention whose down-projections every tensor-parallel rank has.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from vime_trainers.megatron.experts import ExpertLayer, PackedRouter

LATENT_NORM_EPS = 1e-6
"""Of the norms of latent vectors: a constant of the architecture, whatever the other norms have."""


def block_spec(
    config: TransformerConfig, *, transformer_engine: bool, vp_stage: int | None = None
) -> TransformerBlockSubmodules:
    """The layers of this stage: Transformer Engine's, or those of this module.

    `vp_stage`: which of the stage's parts, with a virtual pipeline.
    """
    if transformer_engine:
        block = get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=vp_stage)
    else:
        in_layer = config.moe_layer_freq if config.num_moe_experts else [0] * config.num_layers
        assert isinstance(in_layer, list)
        kinds = {
            has_experts: _local_layer(config, has_experts=bool(has_experts)) for has_experts in {*in_layer}
        }
        first = get_transformer_layer_offset(config, vp_stage=vp_stage)
        here = in_layer[first : first + get_num_layers_to_build(config, vp_stage=vp_stage)]
        block = TransformerBlockSubmodules(layer_specs=[kinds[x] for x in here], layer_norm=RMSNorm)
    for layer in block.layer_specs or []:
        if hasattr(layer.submodules.mlp.submodules, "router"):
            layer.submodules.mlp.submodules.router = PackedRouter
            layer.module = ExpertLayer
    return block


def _local_layer(config: TransformerConfig, *, has_experts: bool) -> Any:
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if has_experts else None,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        normalization="RMSNorm",
    )
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention = layer.self_attention.submodules
    attention.core_attention = SDPACoreAttention
    if config.multi_latent_attention:
        layer.self_attention.module = LatentAttention
        attention.q_layernorm = attention.kv_layernorm = LatentNorm
    elif config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return spec


class RMSNorm(torch.nn.RMSNorm):
    """Root-mean-square norm whose gradient is summed over tensor-parallel ranks where they split the rows."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class LatentNorm(RMSNorm):
    """The norm of a latent vector."""

    def __init__(self, config: TransformerConfig, hidden_size: int, **_: Any) -> None:
        super().__init__(config, hidden_size, eps=LATENT_NORM_EPS)


class ReplicatedLinear(torch.nn.Linear):
    """A projection that every tensor-parallel rank has whole, and applies to its own share of the rows."""

    def __init__(self, config: TransformerConfig, in_size: int, out_size: int) -> None:
        super().__init__(in_size, out_size, bias=False, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, input: Tensor) -> tuple[Tensor, None]:
        """(output, no bias), as megatron-core's linear layers."""
        return super().forward(input), None


class LatentAttention(MLASelfAttention):
    """Multi-head latent attention with down-projections that every tensor-parallel rank has whole.

    megatron-core's local layers cut them over the ranks and gather their output, in whose gradient each rank
    then has only its own heads' share for the part of the key that all heads have in common.
    """

    def __init__(self, config: TransformerConfig, submodules: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, submodules, *args, **kwargs)  # type: ignore[arg-type]
        latent = self.config
        if latent.q_lora_rank is not None:
            self.linear_q_down_proj = ReplicatedLinear(config, config.hidden_size, latent.q_lora_rank)
        width = latent.kv_lora_rank + latent.qk_pos_emb_head_dim
        self.linear_kv_down_proj = ReplicatedLinear(config, config.hidden_size, width)


class SDPACoreAttention(MegatronModule):
    """Causal attention within each packed row, by torch's scaled_dot_product_attention.

    With context parallelism every row is cut into 2 * cp chunks; rank r holds chunks r and 2 * cp - 1 - r (as
    Transformer Engine does), so that all ranks do the same work. Keys and values are gathered from all ranks.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self.cp_group = groups.cp
        self.scale = softmax_scale if softmax_scale is not None else config.kv_channels**-0.5

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Returns [tokens, heads * v_dim].

        `query` is [tokens, heads, dim], `key` [tokens, groups, dim], `value` [tokens, groups, v_dim].
        """
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd":
            raise ValueError("SDPACoreAttention reads packed rows (thd) only")
        bounds = packed_seq_params.cu_seqlens_q_padded
        lengths = (bounds[1:] - bounds[:-1]).tolist()
        rows = self._rows if self.cp_group.size() == 1 else self._context_parallel_rows
        return torch.cat(rows(query, key, value, lengths))

    def _rows(self, query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> list[Tensor]:
        """Neighbours of equal length are one call; packs are laid out longest row first."""
        runs = [(length, len(list(same))) for length, same in itertools.groupby(lengths)]
        sizes = [length * count for length, count in runs]
        parts = zip(runs, query.split(sizes), key.split(sizes), value.split(sizes), strict=True)
        return [self._attend(q, k, v, num_rows=count) for (_, count), q, k, v in parts]

    def _context_parallel_rows(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: list[int]
    ) -> list[Tensor]:
        size, rank = self.cp_group.size(), self.cp_group.rank()
        gathered = gather_from_sequence_parallel_region(
            torch.cat([key, value], -1), tensor_parallel_output_grad=True, group=self.cp_group
        )
        gathered = gathered.view(size, -1, *gathered.shape[1:])
        out, offset = [], 0
        for length in lengths:
            local, chunk = length // size, length // (2 * size)
            ranks = gathered[:, offset : offset + local]
            ordered = torch.cat(
                [ranks[i, :chunk] for i in range(size)] + [ranks[i, chunk:] for i in reversed(range(size))]
            )
            mine = query[offset : offset + local]
            for part, index in ((mine[:chunk], rank), (mine[chunk:], 2 * size - 1 - rank)):
                k, v = ordered[: (index + 1) * chunk].split([key.shape[-1], value.shape[-1]], dim=-1)
                out.append(self._attend(part, k, v, first=index * chunk))
            offset += local
        return out

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, num_rows: int = 1, first: int = 0
    ) -> Tensor:
        """Causal attention of rows of equal length; `first` is the position of the first query in its row."""
        q, k, v = (x.unflatten(0, (num_rows, -1)).transpose(1, 2) for x in (query, key, value))
        mask = None
        if first:
            shape = (q.shape[2], k.shape[2])
            mask = torch.ones(shape, dtype=torch.bool, device=q.device).tril(first)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(2).flatten(0, 1)
