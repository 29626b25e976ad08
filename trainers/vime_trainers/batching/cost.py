"""What a row costs: floating-point operations of a forward pass, out of a Hugging Face config.

A multiplication and an addition are two operations. The backward pass takes twice as many, so that the
proportions between rows are those of a training step. Norms, activations and RoPE are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """Operations of a forward pass: linear in the row's length, quadratic where tokens see each other."""

    per_token: float
    """Of the layers' matrices; of experts, those that a token is sent to."""
    per_pair: float
    """Of attention, for a token and one that it sees."""
    per_prediction: float
    """Of the output layer, which runs where a prediction is wanted."""

    def __call__(self, num_inputs: int, num_predictions: int) -> float:
        """Operations of a row."""
        pairs = num_inputs * (num_inputs + 1) / 2
        return self.per_token * num_inputs + self.per_pair * pairs + self.per_prediction * num_predictions


LENGTH = RowCost(per_token=1.0, per_pair=0.0, per_prediction=0.0)
"""A row costs what it is long: where nothing is known of the model."""


def read_row_cost(hf_checkpoint: str | Path) -> RowCost:
    """Of the model whose `config.json` is in the folder."""
    return row_cost(json.loads((Path(hf_checkpoint) / "config.json").read_text()))


def mfu(forward: float, seconds: float, tflops: float) -> float:
    """Model FLOPs utilisation of a training step (PaLM, arXiv:2204.02311, appendix B).

    The backward pass counts twice the forward pass; layers that are recomputed do not count.

    Args:
        forward: Operations of the forward pass of all rows.
        seconds: That the step took.
        tflops: What all devices together can do, 10^12 operations a second.
    """
    return 3 * forward / seconds / (tflops * 1e12)


def row_cost(config: Mapping[str, Any]) -> RowCost:
    """Of a decoder with attention of heads or of latents (DeepSeek), dense or with experts."""
    hidden, num_layers = config["hidden_size"], config["num_hidden_layers"]
    attention, pair_width = _attention(config)
    num_sparse = sum(_is_sparse(config, layer) for layer in range(num_layers))
    matrices = num_layers * attention + (num_layers - num_sparse) * 3 * hidden * config["intermediate_size"]
    if num_sparse:
        matrices += num_sparse * _experts(config)
    return RowCost(
        per_token=2.0 * matrices,
        per_pair=2.0 * num_layers * pair_width,
        per_prediction=2.0 * hidden * config["vocab_size"],
    )


def _attention(config: Mapping[str, Any]) -> tuple[int, int]:
    """Entries of a layer's matrices; width of all heads' queries and values together."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if "kv_lora_rank" in config:  # multi-head latent attention, arXiv:2405.04434
        query, value = config["qk_nope_head_dim"] + config["qk_rope_head_dim"], config["v_head_dim"]
        rank, latent = config.get("q_lora_rank"), config["kv_lora_rank"]
        queries = hidden * heads * query if rank is None else rank * (hidden + heads * query)
        keys_values = hidden * (latent + config["qk_rope_head_dim"]) + latent * heads * (
            config["qk_nope_head_dim"] + value
        )
        return queries + keys_values + heads * value * hidden, heads * (query + value)
    size = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return 2 * hidden * size * (heads + kv_heads), 2 * heads * size


def _num_experts(config: Mapping[str, Any]) -> int:
    """Families and versions of transformers differ in the word."""
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    return next((config[name] for name in names if config.get(name)), 0)


def _is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    if not _num_experts(config) or layer < config.get("first_k_dense_replace", 0):
        return False
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0


def _experts(config: Mapping[str, Any]) -> int:
    """Entries of the matrices that one token meets in a layer of experts, the router's included."""
    active = config["num_experts_per_tok"] + (config.get("n_shared_experts") or 0)
    return config["hidden_size"] * (3 * active * config["moe_intermediate_size"] + _num_experts(config))
