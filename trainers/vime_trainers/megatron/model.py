"""A model's shape -> this rank's part of a GPTModel, in one piece or, with a virtual pipeline, in several."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.device import device, has_cuda, uses_transformer_engine
from vime_trainers.megatron.families import ModelShape, scaled_inv_freq
from vime_trainers.megatron.layers import block_spec


class PolicyModel(GPTModel):
    """A GPTModel whose last stage gives hidden states: logits are computed for trainable tokens only."""

    def _postprocess(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states

    def output_weight(self) -> Tensor:
        """[vocabulary of this tensor-parallel rank, hidden]; on the last stage."""
        if self.share_embeddings_and_output_weights:
            return self.shared_embedding_or_output_weight()
        return self.output_layer.weight


def build_model(config: MegatronConfig, shape: ModelShape) -> list[PolicyModel]:
    """The parts of the model that this rank has, with random weights. Needs megatron's parallel state.

    More than one with a virtual pipeline only; the last stage's last part has the output layer.

    Raises:
        ConfigError: the parallel sizes do not divide the model, or its layers cannot run here.
    """
    num_parts = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    _check_parallel_sizes(config, shape, num_parts or 1)
    fused = uses_transformer_engine(config.transformer_impl, fp8=config.fp8_format)
    transformer = _transformer_config(config, shape, fused=fused)
    parts = []
    for part in range(num_parts or 1):
        vp_stage = None if num_parts is None else part
        model = PolicyModel(
            config=transformer,
            transformer_layer_spec=block_spec(transformer, transformer_engine=fused, vp_stage=vp_stage),
            vocab_size=-(-shape.vocab_size // config.tensor_model_parallel_size)
            * config.tensor_model_parallel_size,
            max_sequence_length=shape.max_position,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=shape.tied,
            position_embedding_type="yarn" if _is_plain_yarn(shape) else "rope",
            rotary_base=shape.rope_theta,  # type: ignore[arg-type]
            vp_stage=vp_stage,
        )
        if shape.rope_scaling is not None and shape.rope_scaling.kind == "llama3":
            rope = model.rotary_pos_emb
            rope.inv_freq = scaled_inv_freq(rope.inv_freq, shape.rope_scaling)
        parts.append(model.to(device()))
    return parts


def check_policy(config: MegatronConfig, shape: ModelShape) -> None:
    """Refuse what the model that is trained has no use for; a frozen one beside it may be of another kind.

    Raises:
        ConfigError: naming the flag.
    """
    if shape.experts is not None:
        return
    unused = {
        "--expert-model-parallel-size": config.expert_model_parallel_size > 1,
        "--expert-tensor-parallel-size": config.expert_tensor_parallel_size is not None,
        "--moe-aux-loss-coeff": config.moe_aux_loss_coeff != 0,
    }
    for flag, is_set in unused.items():
        if is_set:
            raise ConfigError(f"{flag}: the model ({shape.model_type}) has no experts; drop it")


def virtual_pipeline_size(config: MegatronConfig, shape: ModelShape) -> int | None:
    """Parts of each pipeline stage; None: one, and no virtual pipeline.

    Raises:
        ConfigError: the layers cannot be divided so.
    """
    part = config.num_layers_per_virtual_pipeline_stage
    if part is None:
        return None
    stage = shape.num_layers // config.pipeline_model_parallel_size
    if stage % part or stage == part:
        raise ConfigError(
            f"--num-layers-per-virtual-pipeline-stage {part}: a pipeline stage has {stage} layers, which "
            "must be two or more times that"
        )
    return stage // part


def _check_parallel_sizes(config: MegatronConfig, shape: ModelShape, num_parts: int) -> None:
    tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    _check_divides("--tensor-model-parallel-size", tp, shape.num_kv_heads, "key/value heads")
    _check_divides("--tensor-model-parallel-size", tp, shape.ffn_size, "MLP width")
    if num_parts == 1:
        _check_divides("--pipeline-model-parallel-size", pp, shape.num_layers, "layers")
    elif shape.num_layers % (pp * num_parts):
        raise ConfigError(
            f"the {shape.num_layers} layers of a {shape.model_type} model cannot be cut into {num_parts} "
            f"parts on each of {pp} pipeline stages: drop --num-layers-per-virtual-pipeline-stage"
        )
    experts = shape.experts
    if experts is None:
        return
    if tp > 1 and not config.sequence_parallel:
        raise ConfigError(
            f"--tensor-model-parallel-size {tp}: a model with experts needs --sequence-parallel beside it"
        )
    ep = config.expert_model_parallel_size
    _check_divides("--expert-model-parallel-size", ep, experts.num_experts, "experts")
    etp = config.expert_tensor_size
    _check_divides("--expert-tensor-parallel-size", etp, experts.ffn_size, "expert width")
    if ep > 1 and etp > 1 and not has_cuda():
        raise ConfigError(
            f"--expert-model-parallel-size {ep} with experts cut over {etp} ranks: without accelerators "
            "ranks cannot gather different numbers of tokens; set --expert-tensor-parallel-size 1"
        )


def _check_divides(flag: str, size: int, count: int, what: str) -> None:
    if count % size:
        raise ConfigError(f"{flag} {size} does not divide the model's {count} {what}")


def _is_plain_yarn(shape: ModelShape) -> bool:
    """Whether the model's own rotary embedding is yarn's: latent attention has one of its own."""
    return shape.latent is None and shape.rope_scaling is not None and shape.rope_scaling.kind == "yarn"


def _transformer_config(config: MegatronConfig, shape: ModelShape, *, fused: bool) -> TransformerConfig:
    dtype = torch.bfloat16 if config.bf16 else torch.float32
    num_parts = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    recompute = (
        {"recompute_method": "uniform", "recompute_num_layers": 1} if config.recompute_granularity else {}
    )
    kind = TransformerConfig if shape.latent is None else MLATransformerConfig
    made = kind(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=shape.rms_norm_eps,
        normalization="RMSNorm",
        qk_layernorm=shape.family.qk_norm or shape.family.latent,
        add_qkv_bias=shape.family.qkv_bias,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=num_parts,
        # Two stages send to each other in both directions, which one batch of messages cannot tell apart.
        overlap_p2p_comm=num_parts is not None,
        batch_p2p_comm=num_parts is None,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_size,
        sequence_parallel=config.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=config.bf16,
        fp8=config.fp8_format,  # type: ignore[arg-type]
        recompute_granularity=config.recompute_granularity,
        use_cpu_initialization=not has_cuda(),
        # Also what sets the tensor-parallel attributes of parameters, without which the norm is wrong.
        perform_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=fused,
        bias_dropout_fusion=fused,
        bias_activation_fusion=fused,
        apply_rope_fusion=fused and shape.rope_scaling is None and shape.latent is None,
        persist_layer_norm=False,
        cross_entropy_loss_fusion=False,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the default does not allow variable lengths
        # A token's weight already contains the batch's denominator: nothing may scale the loss again.
        calculate_per_token_loss=True,
        **recompute,
        **_expert_settings(config, shape, fused=fused),
        **_latent_settings(shape),
    )
    if _is_plain_yarn(shape):
        _set_yarn(made, shape)
    return made


def _expert_settings(config: MegatronConfig, shape: ModelShape, *, fused: bool) -> dict[str, Any]:
    experts = shape.experts
    if experts is None:
        return {}
    return {
        "num_moe_experts": experts.num_experts,
        "moe_ffn_hidden_size": experts.ffn_size,
        "moe_shared_expert_intermediate_size": experts.shared_ffn_size or None,
        "moe_layer_freq": [int(x) for x in experts.in_layer],
        "moe_grouped_gemm": fused,
        "moe_router_topk": experts.top_k,
        "moe_router_score_function": experts.score,
        # Softmax over all experts, or over the chosen ones, whose weights then sum to 1.
        "moe_router_pre_softmax": experts.score == "softmax" and not experts.normalized,
        "moe_router_topk_scaling_factor": experts.scaling if experts.scaling != 1.0 else None,
        "moe_router_num_groups": experts.num_groups,
        "moe_router_group_topk": experts.group_top_k,
        "moe_router_enable_expert_bias": experts.selection_bias,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",  # the router adds its own, see experts.py
        "moe_aux_loss_coeff": config.moe_aux_loss_coeff,
    }


def _latent_settings(shape: ModelShape) -> dict[str, Any]:
    if shape.latent is None:
        return {}
    settings: dict[str, Any] = {
        "q_lora_rank": shape.latent.q_rank,
        "kv_lora_rank": shape.latent.kv_rank,
        "qk_head_dim": shape.latent.nope_dim,
        "qk_pos_emb_head_dim": shape.latent.rope_dim,
        "v_head_dim": shape.latent.v_dim,
        "rotary_base": shape.rope_theta,
    }
    scaling = shape.rope_scaling
    if scaling is None:
        return settings | {"rope_type": "rope", "rotary_scaling_factor": 1.0}
    if scaling.kind != "yarn":
        raise ConfigError(f"rope type {scaling.kind!r} is not supported with latent attention; need yarn")
    return settings | {
        "rope_type": "yarn",
        "rotary_scaling_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": scaling.mscale,
        "mscale_all_dim": scaling.mscale_all_dim,
    }


def _set_yarn(transformer: Any, shape: ModelShape) -> None:
    """What GPTModel and its attention look for on a config whose class does not declare it."""
    scaling = shape.rope_scaling
    assert scaling is not None
    transformer.yarn_rotary_scaling_factor = scaling.factor
    transformer.yarn_original_max_position_embeddings = scaling.original_max_position
    transformer.yarn_beta_fast, transformer.yarn_beta_slow = scaling.beta_fast, scaling.beta_slow
    transformer.yarn_mscale, transformer.yarn_mscale_all_dim = scaling.mscale, scaling.mscale_all_dim
    transformer.yarn_correction_range_round_to_int = True
