"""A Hugging Face folder -> this rank's part of a GPTModel, and its weights back under their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from safetensors import safe_open
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.device import device, has_cuda, has_transformer_engine
from vime_trainers.megatron.families import Mapping, ModelShape, mapping_of, merge, split
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


def build_model(config: MegatronConfig, shape: ModelShape) -> PolicyModel:
    """This rank's part of the model, with random weights. Needs megatron's parallel state.

    Raises:
        ConfigError: the parallel sizes do not divide the model.
    """
    tp = config.tensor_model_parallel_size
    _check_divides("--tensor-model-parallel-size", tp, {"key/value heads": shape.num_kv_heads})
    _check_divides("--tensor-model-parallel-size", tp, {"MLP width": shape.ffn_size})
    _check_divides(
        "--pipeline-model-parallel-size", config.pipeline_model_parallel_size, {"layers": shape.num_layers}
    )
    transformer = _transformer_config(config, shape)
    model = PolicyModel(
        config=transformer,
        transformer_layer_spec=block_spec(transformer),
        vocab_size=-(-shape.vocab_size // tp) * tp,
        max_sequence_length=shape.max_position,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=shape.tied,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,
    )
    return model.to(device())


def _transformer_config(config: MegatronConfig, shape: ModelShape) -> TransformerConfig:
    dtype = torch.bfloat16 if config.bf16 else torch.float32
    fused = has_transformer_engine()
    recompute = (
        {"recompute_method": "uniform", "recompute_num_layers": 1} if config.recompute_granularity else {}
    )
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=shape.rms_norm_eps,
        normalization="RMSNorm",
        qk_layernorm=shape.family.qk_norm,
        add_qkv_bias=shape.family.qkv_bias,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        sequence_parallel=config.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=config.bf16,
        recompute_granularity=config.recompute_granularity,
        use_cpu_initialization=not has_cuda(),
        # Also what sets the tensor-parallel attributes of parameters, without which the norm is wrong.
        perform_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=fused,
        bias_dropout_fusion=fused,
        bias_activation_fusion=fused,
        apply_rope_fusion=fused,
        persist_layer_norm=False,
        cross_entropy_loss_fusion=False,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the default does not allow variable lengths
        # A token's weight already contains the batch's denominator: nothing may scale the loss again.
        calculate_per_token_loss=True,
        **recompute,
    )


def _check_divides(flag: str, size: int, parts: dict[str, int]) -> None:
    for what, count in parts.items():
        if count % size:
            raise ConfigError(f"{flag} {size} does not divide the model's {count} {what}")


# ------------------------------------------------------------------------------------------- weights in


@torch.no_grad()
def load_hf_weights(model: PolicyModel, folder: str | Path, shape: ModelShape) -> None:
    """Fill the model from `*.safetensors`; each rank reads its own slices only, cast to the model's dtype.

    Raises:
        ConfigError: a tensor is missing, or its shape is not what `config.json` says.
    """
    tp_rank = parallel_state.get_tensor_model_parallel_rank()
    tp_size = parallel_state.get_tensor_model_parallel_world_size()
    expected = shape.hf_shapes()
    with ExitStack() as stack:
        files = _open_checkpoint(Path(folder), stack)
        for name, parameter in _global_names(model):
            line = _source_of(name, shape)
            parts = []
            for hf_name in line.hf_names:
                if hf_name not in files:
                    raise ConfigError(f"--hf-checkpoint {folder}: no tensor {hf_name!r}, which {name} needs")
                whole = files[hf_name].get_slice(hf_name)
                if tuple(whole.get_shape()) != expected[hf_name]:
                    raise ConfigError(
                        f"--hf-checkpoint {folder}: {hf_name} is {tuple(whole.get_shape())}, but config.json "
                        f"says {expected[hf_name]}"
                    )
                parts.append(_read_slice(whole, line, tp_rank, tp_size))
            value = merge(parts, line.merge, shape)
            # Rows past the vocabulary exist only to make it divide by the ranks.
            parameter[: value.shape[0]].copy_(value)
            parameter[value.shape[0] :].zero_()


def _open_checkpoint(folder: Path, stack: ExitStack) -> dict[str, Any]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    else:
        names = {p.name for p in folder.glob("*.safetensors")}
    if not names:
        raise ConfigError(f"--hf-checkpoint {folder}: no *.safetensors file there")
    handles = [stack.enter_context(safe_open(folder / name, framework="pt")) for name in sorted(names)]
    return {key: handle for handle in handles for key in handle.keys()}  # noqa: SIM118


def _read_slice(whole: Any, line: Mapping, rank: int, size: int) -> Tensor:
    if line.cut == "whole":
        return whole[:]
    dim = 0 if line.cut == "rows" else 1
    width = -(-whole.get_shape()[dim] // size)
    part = slice(rank * width, (rank + 1) * width)
    return whole[part] if dim == 0 else whole[:, part]


def _source_of(name: str, shape: ModelShape) -> Mapping:
    """Where to read a parameter from: with tied weights, the last stage's output layer is the embedding."""
    if name == "output_layer.weight" and shape.tied:
        return mapping_of("embedding.word_embeddings.weight")
    return mapping_of(name)


def _global_names(model: PolicyModel) -> Iterator[tuple[str, Tensor]]:
    """Parameters of this stage, their layers numbered over the whole model."""
    numbers = {str(i): layer.layer_number - 1 for i, layer in enumerate(model.decoder.layers)}
    prefix = "decoder.layers."
    for name, parameter in model.named_parameters():
        if name.startswith(prefix):
            local, _, rest = name.removeprefix(prefix).partition(".")
            name = f"{prefix}{numbers[local]}.{rest}"
        yield name, parameter


# ------------------------------------------------------------------------------------------ weights out


@torch.no_grad()
def export_hf_weights(
    model: PolicyModel, shape: ModelShape, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, whole tensor), in the order of `ModelShape.hf_shapes`; tied weights come once.

    A collective of the first model replica; the ranks of the others get nothing. Exhaust it on all ranks. The
    tensors may share memory with the model: use them before the next update.
    """
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) != 0:
        return
    pp_group = parallel_state.get_pipeline_model_parallel_group()
    mine = {}
    for name, parameter in _global_names(model):
        if not (name == "output_layer.weight" and shape.tied):
            mine |= dict.fromkeys(mapping_of(name).hf_names, (name, parameter))
    owners: list[Any] = [None] * pp_group.size()
    dist.all_gather_object(owners, list(mine), group=pp_group)
    stage_of = {name: stage for stage, names in enumerate(owners) for name in names}
    last: tuple[str, list[Tensor]] = ("", [])
    for hf_name, hf_shape in shape.hf_shapes().items():
        whole = None
        if hf_name in mine:
            name, parameter = mine[hf_name]
            if last[0] != name:
                last = (name, _gather_parts(name, parameter, shape))
            whole = last[1][mapping_of(name).hf_names.index(hf_name)]
            whole = whole[: hf_shape[0]].to(dtype or whole.dtype).contiguous()
        yield hf_name, _from_stage(whole, hf_shape, dtype or model.config.params_dtype, stage_of[hf_name])


def _gather_parts(name: str, parameter: Tensor, shape: ModelShape) -> list[Tensor]:
    """The Hugging Face tensors of one parameter, gathered over the tensor-parallel ranks."""
    line = mapping_of(name)
    parts = split(parameter.detach(), line.merge, shape)
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1 or line.cut == "whole":
        return parts
    dim = 0 if line.cut == "rows" else 1
    whole = []
    for part in parts:
        shards = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(shards, part.contiguous(), group=group)
        whole.append(torch.cat(shards, dim=dim))
    return whole


def _from_stage(whole: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, stage: int) -> Tensor:
    """Hand a tensor from the pipeline stage that has it to all others."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() > 1:
        if whole is None:
            whole = torch.empty(shape, dtype=dtype, device=device())
        dist.broadcast(whole, src=dist.get_global_rank(group, stage), group=group)
    assert whole is not None
    return whole
