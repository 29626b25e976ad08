import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vime_agents.errors import ConfigError
from vime_trainers.megatron.families import (
    RopeScaling,
    mapping_of,
    merge,
    read_model_shape,
    scaled_inv_freq,
    split,
)
from vime_trainers.megatron.families.names import whole_model_name

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "deepseek_v3": transformers.DeepseekV3Config,
}
EXPERTS = {
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    },
    "deepseek_v3": {
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "n_shared_experts": 2,
        "q_lora_rank": 12,
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 7,
    },
}
ROPE = {"rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}


def write_config(folder: Path, family: str = "llama", **changes: object) -> Path:
    shape = {"head_dim": 8} if family != "deepseek_v3" else {}
    config = CONFIGS[family](
        vocab_size=50,
        hidden_size=48,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6 if family == "deepseek_v3" else 2,
        tie_word_embeddings=family == "qwen3",
        **EXPERTS.get(family, {}),
        **shape,
    ).to_dict()
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("q_rank", [12, None])
@pytest.mark.parametrize("family", CONFIGS)
def test_names_and_shapes_are_those_of_the_transformers_model(tmp_path, family, q_rank):
    changes = {"q_lora_rank": q_rank} if family == "deepseek_v3" else {}
    write_config(tmp_path, family, **changes)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    model.save_pretrained(tmp_path / "saved")
    expected = {n: tuple(t.shape) for n, t in load_file(tmp_path / "saved" / "model.safetensors").items()}
    assert read_model_shape(tmp_path).hf_shapes() == expected


def test_the_rope_base_is_read_under_its_old_and_its_new_name(tmp_path):
    new = write_config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 123.0})
    assert read_model_shape(new).rope_theta == 123.0
    old = write_config(tmp_path, rope_parameters=None, rope_theta=456.0)
    assert read_model_shape(old).rope_theta == 456.0


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "gpt2"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": ROPE | {"rope_type": "yarn", "attention_factor": 2.0}},
        {"rope_parameters": ROPE | {"rope_type": "yarn", "truncate": False}},
        {"quantization_config": {"quant_method": "fp8"}},
    ],
)
def test_what_the_trainer_would_compute_differently_is_refused(tmp_path, changes):
    with pytest.raises(ConfigError, match="not supported"):
        read_model_shape(write_config(tmp_path, **changes))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 1}),
        ("deepseek_v3", {"rope_interleave": False}),
        ("deepseek_v3", {"rms_norm_eps": 1e-5}),
        ("deepseek_v3", {"norm_topk_prob": False}),
        ("deepseek_v3", {"num_experts_per_tok": 6}),
    ],
)
def test_what_experts_and_latents_would_compute_differently_is_refused(tmp_path, family, changes):
    with pytest.raises(ConfigError, match=next(iter(changes)) + ".*not supported"):
        read_model_shape(write_config(tmp_path, family, **changes))


def test_experts_are_read_from_each_familys_own_words(tmp_path):
    qwen = read_model_shape(write_config(tmp_path, "qwen3_moe")).experts
    assert (qwen.num_experts, qwen.top_k, qwen.in_layer, qwen.score) == (4, 2, (False, True), "softmax")
    assert not qwen.normalized  # transformers' default for this family
    deepseek = read_model_shape(write_config(tmp_path, "deepseek_v3")).experts
    assert (deepseek.num_experts, deepseek.shared_ffn_size, deepseek.scaling) == (8, 32, 2.5)
    assert (deepseek.num_groups, deepseek.group_top_k, deepseek.selection_bias) == (4, 2, True)
    alone = write_config(tmp_path, "deepseek_v3", n_group=1, topk_group=1)
    assert read_model_shape(alone).experts.num_groups is None


@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_llama3_frequencies_are_those_of_transformers(head_dim):
    """Short waves as they are, long ones stretched, a ramp between: all three must occur."""
    settings = ROPE | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = transformers.LlamaConfig(head_dim=head_dim, rope_parameters=settings)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1.0 / 1e4 ** (torch.arange(0, head_dim, 2).float() / head_dim)
    scaling = RopeScaling(
        kind="llama3", factor=8.0, original_max_position=64, low_freq_factor=1.0, high_freq_factor=4.0
    )
    torch.testing.assert_close(scaled_inv_freq(plain, scaling), expected, rtol=1e-6, atol=0)
    ratios = (expected / plain).round(decimals=4)
    assert ratios.min() == 0.125
    assert ratios.max() == 1.0


def test_a_folder_without_a_config_is_refused_by_flag(tmp_path):
    with pytest.raises(ConfigError, match="--hf-checkpoint"):
        read_model_shape(tmp_path)


def test_qkv_is_interleaved_by_group_and_split_is_the_inverse(tmp_path):
    shape = read_model_shape(write_config(tmp_path))
    # 6 query heads and 2 groups of 8 rows each; every row carries its head's name.
    q = torch.arange(6.0).repeat_interleave(8)[:, None].expand(48, 3)
    k = torch.tensor([10.0, 11.0]).repeat_interleave(8)[:, None].expand(16, 3)
    v = torch.tensor([20.0, 21.0]).repeat_interleave(8)[:, None].expand(16, 3)
    merged = merge([q, k, v], "qkv", shape)
    assert merged[::8, 0].tolist() == [0, 1, 2, 10, 20, 3, 4, 5, 11, 21]
    for part, back in zip((q, k, v), split(merged, "qkv", shape), strict=True):
        assert torch.equal(part, back)


def test_layers_and_experts_keep_their_number_and_unknown_tensors_are_refused(tmp_path):
    shape = read_model_shape(write_config(tmp_path, "qwen3_moe"))
    names = mapping_of("decoder.layers.7.mlp.linear_fc1.weight", shape).hf_names
    assert names == ("model.layers.7.mlp.gate_proj.weight", "model.layers.7.mlp.up_proj.weight")
    for name in ("local_experts.3.linear_fc2.weight", "linear_fc2.weight3"):  # plain torch's, and grouped
        line = mapping_of(f"decoder.layers.1.mlp.experts.{name}", shape)
        assert line.hf_names == ("model.layers.1.mlp.experts.3.down_proj.weight",)
        assert line.expert
    with pytest.raises(ConfigError, match=r"decoder\.layers\.0\.mystery"):
        mapping_of("decoder.layers.0.mystery", shape)


def test_a_norm_of_queries_is_another_tensor_where_attention_is_latent(tmp_path):
    name = "decoder.layers.0.self_attention.q_layernorm.weight"
    plain = mapping_of(name, read_model_shape(write_config(tmp_path, "qwen3")))
    latent = mapping_of(name, read_model_shape(write_config(tmp_path, "deepseek_v3")))
    assert plain.hf_names == ("model.layers.0.self_attn.q_norm.weight",)
    assert latent.hf_names == ("model.layers.0.self_attn.q_a_layernorm.weight",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("output_layer.weight", "output_layer.weight"),
        ("decoder.layers.1.mlp.linear_fc1.weight", "decoder.layers.5.mlp.linear_fc1.weight"),
        (
            "decoder.layers.0.mlp.experts.local_experts.2.linear_fc1.weight",
            "decoder.layers.4.mlp.experts.local_experts.10.linear_fc1.weight",
        ),
        (
            "decoder.layers.0.mlp.experts.linear_fc2.weight0",
            "decoder.layers.4.mlp.experts.linear_fc2.weight8",
        ),
    ],
)
def test_a_part_of_the_model_knows_the_numbers_of_the_whole(name, expected):
    assert whole_model_name(name, layers={0: 4, 1: 5}, first_expert=8) == expected
