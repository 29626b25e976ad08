"""Hugging Face <-> megatron-core: what a model's tensors are called, shaped and made of. A table, no model.

To add a dense family: say in `FAMILIES` what its attention has. A tensor that is named or cut otherwise is
one more line of `_GLOBAL` or `_LAYER`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vime_agents.errors import ConfigError

Cut = Literal["rows", "columns", "whole"]
"""How tensor parallelism cuts a Hugging Face tensor: along dim 0, along dim 1, not at all."""


@dataclass(frozen=True, slots=True)
class Family:
    """What tells one dense family from another."""

    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
}
"""`model_type` of config.json -> family."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One megatron-core tensor: the Hugging Face tensors that it is made of."""

    hf_names: tuple[str, ...]
    cut: Cut
    merge: Literal["one", "stack", "qkv"] = "one"
    """`stack`: concatenated along dim 0; `qkv`: interleaved by group of heads."""


_GLOBAL = {
    "embedding.word_embeddings.weight": Mapping(("model.embed_tokens.weight",), "rows"),
    "decoder.final_layernorm.weight": Mapping(("model.norm.weight",), "whole"),
    "output_layer.weight": Mapping(("lm_head.weight",), "rows"),
}
_INPUT_NORM = Mapping(("input_layernorm.weight",), "whole")
_MLP_NORM = Mapping(("post_attention_layernorm.weight",), "whole")
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LAYER = {
    "input_layernorm.weight": _INPUT_NORM,
    "self_attention.linear_qkv.layer_norm_weight": _INPUT_NORM,  # its name within Transformer Engine's layer
    "self_attention.linear_qkv.weight": Mapping(tuple(f"{p}.weight" for p in _QKV), "rows", "qkv"),
    "self_attention.linear_qkv.bias": Mapping(tuple(f"{p}.bias" for p in _QKV), "rows", "qkv"),
    "self_attention.q_layernorm.weight": Mapping(("self_attn.q_norm.weight",), "whole"),
    "self_attention.k_layernorm.weight": Mapping(("self_attn.k_norm.weight",), "whole"),
    "self_attention.linear_proj.weight": Mapping(("self_attn.o_proj.weight",), "columns"),
    "pre_mlp_layernorm.weight": _MLP_NORM,
    "mlp.linear_fc1.layer_norm_weight": _MLP_NORM,
    "mlp.linear_fc1.weight": Mapping(("mlp.gate_proj.weight", "mlp.up_proj.weight"), "rows", "stack"),
    "mlp.linear_fc2.weight": Mapping(("mlp.down_proj.weight",), "columns"),
}


def mapping_of(name: str) -> Mapping:
    """The line of the table for a megatron-core parameter; layers are numbered over the whole model."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", name)
    if match is None or match[2] not in _LAYER:
        raise ConfigError(
            f"the trainer's model has a tensor {name!r} that no Hugging Face tensor is known for"
        )
    line = _LAYER[match[2]]
    return Mapping(tuple(f"model.layers.{match[1]}.{n}" for n in line.hf_names), line.cut, line.merge)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The part of a Hugging Face `config.json` that a dense decoder is made of."""

    model_type: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position: int
    tied: bool
    """Whether the output layer is the embedding."""

    @property
    def family(self) -> Family:
        """The family's line of the table."""
        return FAMILIES[self.model_type]

    def hf_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint and its shape, in the order in which weights are exported."""
        hidden, ffn = self.hidden_size, self.ffn_size
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        sizes = (q, kv, kv)
        layer |= {f"{name}.weight": (rows, hidden) for name, rows in zip(_QKV, sizes, strict=True)}
        if self.family.qkv_bias:
            layer |= {f"{name}.bias": (rows,) for name, rows in zip(_QKV, sizes, strict=True)}
        if self.family.qk_norm:
            layer |= {f"self_attn.{x}_norm.weight": (self.head_dim,) for x in "qk"}
        layer["self_attn.o_proj.weight"] = (hidden, q)
        layer["post_attention_layernorm.weight"] = (hidden,)
        layer |= {f"mlp.{x}_proj.weight": (ffn, hidden) for x in ("gate", "up")}
        layer["mlp.down_proj.weight"] = (hidden, ffn)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for index in range(self.num_layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


def read_model_shape(folder: str | Path) -> ModelShape:
    """The shape out of `folder/config.json`.

    Raises:
        ConfigError: no such file, a family that is not in the table, or a feature that is not implemented.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ConfigError(f"--hf-checkpoint {folder}: no config.json there; need a Hugging Face model folder")
    config: dict[str, Any] = json.loads(path.read_text())
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}  # the older name comes second
    _refuse_unknown(path, config, rope)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return ModelShape(
        model_type=config["model_type"],
        num_layers=config["num_hidden_layers"],
        hidden_size=hidden,
        ffn_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        vocab_size=config["vocab_size"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        max_position=config["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _refuse_unknown(path: Path, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Anything that would make the trainer compute something else than the engine does."""
    if config.get("model_type") not in FAMILIES:
        raise ConfigError(
            f"{path}: model_type {config.get('model_type')!r} is not supported; known: {', '.join(FAMILIES)}"
        )
    expected: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu", None),
        "mlp_bias": (False, None),
        "use_sliding_window": (False, None),
    }
    if not FAMILIES[config["model_type"]].qkv_bias:
        expected["attention_bias"] = (False, None)
    for key, allowed in expected.items():
        if config.get(key) not in allowed:
            raise ConfigError(f"{path}: {key} = {config[key]!r} is not supported; need {allowed[0]!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", None):
        raise ConfigError(f"{path}: rope type {kind!r} is not supported; need 'default'")


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
