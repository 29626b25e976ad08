"""What each megatron-core tensor is called in a Hugging Face checkpoint, how it is cut and put together."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_trainers.megatron.families.shape import ModelShape

Cut = Literal["rows", "columns", "whole"]
"""How tensor parallelism cuts a Hugging Face tensor: along dim 0, along dim 1, not at all."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One megatron-core tensor: the Hugging Face tensors that it is made of."""

    hf_names: tuple[str, ...]
    cut: Cut
    merge: Literal["one", "stack", "qkv"] = "one"
    """`stack`: concatenated along dim 0; `qkv`: interleaved by group of heads."""
    expert: bool = False
    """Whether it is split over the expert-parallel ranks, and cut over the expert-tensor-parallel ones."""


_GLOBAL = {
    "embedding.word_embeddings.weight": Mapping(("model.embed_tokens.weight",), "rows"),
    "decoder.final_layernorm.weight": Mapping(("model.norm.weight",), "whole"),
    "output_layer.weight": Mapping(("lm_head.weight",), "rows"),
}
_INPUT_NORM = Mapping(("input_layernorm.weight",), "whole")
_MLP_NORM = Mapping(("post_attention_layernorm.weight",), "whole")
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("gate_proj.weight", "up_proj.weight")
# Names with `layer_norm_weight` are those within Transformer Engine's layers.
_LAYER = {
    "input_layernorm.weight": _INPUT_NORM,
    "self_attention.linear_qkv.layer_norm_weight": _INPUT_NORM,
    "self_attention.linear_qkv.weight": Mapping(tuple(f"{p}.weight" for p in _QKV), "rows", "qkv"),
    "self_attention.linear_qkv.bias": Mapping(tuple(f"{p}.bias" for p in _QKV), "rows", "qkv"),
    "self_attention.q_layernorm.weight": Mapping(("self_attn.q_norm.weight",), "whole"),
    "self_attention.k_layernorm.weight": Mapping(("self_attn.k_norm.weight",), "whole"),
    "self_attention.linear_proj.weight": Mapping(("self_attn.o_proj.weight",), "columns"),
    "pre_mlp_layernorm.weight": _MLP_NORM,
    "mlp.linear_fc1.layer_norm_weight": _MLP_NORM,
    "mlp.linear_fc1.weight": Mapping(tuple(f"mlp.{p}" for p in _GATE_UP), "rows", "stack"),
    "mlp.linear_fc2.weight": Mapping(("mlp.down_proj.weight",), "columns"),
    "mlp.router.weight": Mapping(("mlp.gate.weight",), "whole"),
    "mlp.router.expert_bias": Mapping(("mlp.gate.e_score_correction_bias",), "whole"),
    "mlp.shared_experts.linear_fc1.weight": Mapping(
        tuple(f"mlp.shared_experts.{p}" for p in _GATE_UP), "rows", "stack"
    ),
    "mlp.shared_experts.linear_fc2.weight": Mapping(("mlp.shared_experts.down_proj.weight",), "columns"),
}
_Q_NORM = Mapping(("self_attn.q_a_layernorm.weight",), "whole")
_KV_NORM = Mapping(("self_attn.kv_a_layernorm.weight",), "whole")
_LATENT = {
    "self_attention.linear_q_proj.weight": Mapping(("self_attn.q_proj.weight",), "rows"),
    "self_attention.linear_q_down_proj.weight": Mapping(("self_attn.q_a_proj.weight",), "whole"),
    "self_attention.q_layernorm.weight": _Q_NORM,
    "self_attention.linear_q_up_proj.layer_norm_weight": _Q_NORM,
    "self_attention.linear_q_up_proj.weight": Mapping(("self_attn.q_b_proj.weight",), "rows"),
    "self_attention.linear_kv_down_proj.weight": Mapping(("self_attn.kv_a_proj_with_mqa.weight",), "whole"),
    "self_attention.kv_layernorm.weight": _KV_NORM,
    "self_attention.linear_kv_up_proj.layer_norm_weight": _KV_NORM,
    "self_attention.linear_kv_up_proj.weight": Mapping(("self_attn.kv_b_proj.weight",), "rows"),
}
_EXPERT = {
    "linear_fc1": Mapping(_GATE_UP, "rows", "stack", expert=True),
    "linear_fc2": Mapping(("down_proj.weight",), "columns", expert=True),
}
_EXPERT_NAMES = (
    r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.(?P<linear>linear_fc[12])\.weight",
    r"mlp\.experts\.(?P<linear>linear_fc[12])\.weight(?P<expert>\d+)",  # Transformer Engine's grouped layer
)


def mapping_of(name: str, shape: ModelShape) -> Mapping:
    """The line of the table for a megatron-core tensor, numbered over the whole model."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    line = None if match is None else _layer_line(match[2], shape)
    if match is None or line is None:
        raise ConfigError(
            f"the trainer's model has a tensor {name!r} that no Hugging Face tensor is known for"
        )
    return replace(line, hf_names=tuple(f"model.layers.{match[1]}.{n}" for n in line.hf_names))


def _layer_line(name: str, shape: ModelShape) -> Mapping | None:
    if shape.latent is not None and name in _LATENT:
        return _LATENT[name]
    for pattern in _EXPERT_NAMES:
        if match := re.fullmatch(pattern, name):
            line = _EXPERT[match["linear"]]
            return replace(line, hf_names=tuple(f"mlp.experts.{match['expert']}.{n}" for n in line.hf_names))
    return _LAYER.get(name)


def whole_model_name(name: str, *, layers: dict[int, int], first_expert: int) -> str:
    """A parameter's name in one part of the model -> with its layer and expert numbered over the whole model.

    Args:
        name: As in `named_parameters` of the part.
        layers: Number of each layer of the part, from 0 -> over the whole model, from 0.
        first_expert: What the part calls expert 0.
    """
    prefix = "decoder.layers."
    if not name.startswith(prefix):
        return name
    local, _, rest = name.removeprefix(prefix).partition(".")
    for pattern in _EXPERT_NAMES:
        if match := re.fullmatch(pattern, rest):
            start, end = match.span("expert")
            rest = f"{rest[:start]}{int(match['expert']) + first_expert}{rest[end:]}"
    return f"{prefix}{layers[int(local)]}.{rest}"


def merge(parts: list[Tensor], how: str, shape: ModelShape) -> Tensor:
    """Hugging Face tensors (whole, or one tensor-parallel rank's slice of each) -> a megatron-core one."""
    if how == "one":
        return parts[0]
    if how == "stack":
        return torch.cat(parts)
    # One block per group: its queries, its key, its value.
    rest = parts[0].shape[1:]
    blocks = [p.reshape(-1, n, *rest) for p, n in zip(parts, _group_rows(shape), strict=True)]
    return torch.cat(blocks, dim=1).reshape(-1, *rest)


def split(tensor: Tensor, how: str, shape: ModelShape) -> list[Tensor]:
    """The inverse of `merge`."""
    if how == "one":
        return [tensor]
    if how == "stack":
        return list(tensor.chunk(2))
    rest, rows = tensor.shape[1:], _group_rows(shape)
    blocks = tensor.reshape(-1, sum(rows), *rest).split(rows, dim=1)
    return [b.reshape(-1, *rest) for b in blocks]


def _group_rows(shape: ModelShape) -> list[int]:
    """Rows of queries, keys and values in one group of heads."""
    return [shape.num_heads // shape.num_kv_heads * shape.head_dim, shape.head_dim, shape.head_dim]
