"""`config.json` -> `ModelShape`; what the trainer would compute otherwise than the engine is refused here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vime_agents.errors import ConfigError
from vime_trainers.megatron.families.rope import RopeScaling
from vime_trainers.megatron.families.shape import FAMILIES, ExpertShape, LatentShape, ModelShape


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
    _refuse_unknown(path, config)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    latent = _latent_shape(path, config) if FAMILIES[config["model_type"]].latent else None
    head_dim = config.get("head_dim") or hidden // heads
    return ModelShape(
        model_type=config["model_type"],
        num_layers=config["num_hidden_layers"],
        hidden_size=hidden,
        ffn_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=heads if latent else config.get("num_key_value_heads") or heads,
        head_dim=latent.qk_dim if latent else head_dim,
        vocab_size=config["vocab_size"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        max_position=config["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings", False)),
        rope_scaling=_rope_scaling(path, config, rope),
        latent=latent,
        experts=_EXPERTS[config["model_type"]](path, config) if config["model_type"] in _EXPERTS else None,
    )


def _refuse_unknown(path: Path, config: dict[str, Any]) -> None:
    if config.get("model_type") not in FAMILIES:
        raise ConfigError(
            f"{path}: model_type {config.get('model_type')!r} is not supported; known: {', '.join(FAMILIES)}"
        )
    if config.get("quantization_config"):
        raise ConfigError(
            f"{path}: quantization_config is not supported: the trainer reads float32 and bfloat16 weights; "
            "convert the checkpoint to bfloat16 first"
        )
    expected: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu", None),
        "mlp_bias": (False, None),
        "use_sliding_window": (False, None),
    }
    if not FAMILIES[config["model_type"]].qkv_bias:
        expected["attention_bias"] = (False, None)
    if FAMILIES[config["model_type"]].latent:
        expected["rope_interleave"] = (True, None)
        # The norms of latent vectors: transformers takes 1e-6 whatever config.json says, vLLM what it says.
        expected["rms_norm_eps"] = (1e-6,)
    _expect(path, config, expected)


def _expect(path: Path, config: dict[str, Any], expected: dict[str, tuple[Any, ...]]) -> None:
    for key, allowed in expected.items():
        if config.get(key) not in allowed:
            raise ConfigError(f"{path}: {key} = {config.get(key)!r} is not supported; need {allowed[0]!r}")


def _latent_shape(path: Path, config: dict[str, Any]) -> LatentShape:
    return LatentShape(
        q_rank=config.get("q_lora_rank"),
        kv_rank=config["kv_lora_rank"],
        nope_dim=config["qk_nope_head_dim"],
        rope_dim=config["qk_rope_head_dim"],
        v_dim=config["v_head_dim"],
    )


# ---------------------------------------------------------------------------------------------- experts


def _qwen3_experts(path: Path, config: dict[str, Any]) -> ExpertShape:
    count, step = config["num_hidden_layers"], config.get("decoder_sparse_step", 1)
    dense = set(config.get("mlp_only_layers") or [])
    num_experts = config.get("num_experts") or config["num_local_experts"]
    return _checked(
        path,
        ExpertShape(
            num_experts=num_experts,
            top_k=config["num_experts_per_tok"],
            ffn_size=config["moe_intermediate_size"],
            shared_ffn_size=0,
            in_layer=tuple(i not in dense and (i + 1) % step == 0 for i in range(count)),
            score="softmax",
            normalized=bool(config.get("norm_topk_prob", False)),
        ),
    )


def _deepseek_experts(path: Path, config: dict[str, Any]) -> ExpertShape:
    count, dense = config["num_hidden_layers"], config.get("first_k_dense_replace") or 0
    num_groups, group_top_k = config.get("n_group") or 1, config.get("topk_group") or 1
    grouped = group_top_k < num_groups
    top_k = config["num_experts_per_tok"]
    if grouped and top_k != 2 * group_top_k:
        raise ConfigError(
            f"{path}: num_experts_per_tok = {top_k} with topk_group = {group_top_k} is not supported: groups "
            "are ranked by their two best experts, so need num_experts_per_tok = 2 * topk_group"
        )
    _expect(path, config, {"moe_layer_freq": (1, None), "scoring_func": ("sigmoid", None)})
    return _checked(
        path,
        ExpertShape(
            num_experts=config["n_routed_experts"],
            top_k=top_k,
            ffn_size=config["moe_intermediate_size"],
            shared_ffn_size=config["moe_intermediate_size"] * (config.get("n_shared_experts") or 0),
            in_layer=tuple(i >= dense for i in range(count)),
            score="sigmoid",
            normalized=bool(config.get("norm_topk_prob", True)),
            scaling=config.get("routed_scaling_factor", 1.0),
            num_groups=num_groups if grouped else None,
            group_top_k=group_top_k if grouped else None,
            selection_bias=True,
        ),
    )


def _checked(path: Path, experts: ExpertShape) -> ExpertShape:
    if experts.top_k < 2:
        raise ConfigError(f"{path}: num_experts_per_tok = {experts.top_k} is not supported; need at least 2")
    if experts.score == "sigmoid" and not experts.normalized:
        raise ConfigError(f"{path}: norm_topk_prob = False is not supported for {experts.score} scores")
    if not any(experts.in_layer):
        raise ConfigError(f"{path}: no layer has experts: give the dense model_type instead")
    return experts


_EXPERTS = {"qwen3_moe": _qwen3_experts, "deepseek_v3": _deepseek_experts}


# ------------------------------------------------------------------------------------------------- rope


def _rope_scaling(path: Path, config: dict[str, Any], rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", None):
        return None
    if kind not in ("llama3", "yarn"):
        raise ConfigError(f"{path}: rope type {kind!r} is not supported; need default, llama3 or yarn")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{path}: partial_rotary_factor is not supported with rope type {kind!r}")
    original = rope.get("original_max_position_embeddings")
    if rope.get("factor") is None or original is None:
        raise ConfigError(f"{path}: rope type {kind!r} needs factor and original_max_position_embeddings")
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=float(rope["factor"]),
            original_max_position=original,
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
        )
    return _yarn(path, rope, original)


def _yarn(path: Path, rope: dict[str, Any], original: int) -> RopeScaling:
    _expect(path, rope, {"attention_factor": (None,), "truncate": (True, None)})
    mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
    if all_dim and not mscale:
        raise ConfigError(f"{path}: rope type 'yarn' with mscale_all_dim and no mscale is not supported")
    return RopeScaling(
        kind="yarn",
        factor=float(rope["factor"]),
        original_max_position=original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        # transformers reads mscale only beside mscale_all_dim.
        mscale=float(mscale) if mscale and all_dim else 1.0,
        mscale_all_dim=float(all_dim or 0.0),
    )
