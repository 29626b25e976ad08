import json
from pathlib import Path

import pytest
import torch
import transformers

from vime_agents.errors import ConfigError
from vime_trainers.megatron.families import mapping_of, merge, read_model_shape, split

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


def write_config(folder: Path, family: str = "llama", **changes: object) -> Path:
    config = CONFIGS[family](
        vocab_size=50,
        hidden_size=48,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=family == "qwen3",
    ).to_dict()
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_names_and_shapes_are_those_of_the_transformers_model(tmp_path, family):
    shape = read_model_shape(write_config(tmp_path, family))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(tmp_path)
        )
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shape.hf_shapes() == expected


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
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
    ],
)
def test_what_the_trainer_would_compute_differently_is_refused(tmp_path, changes):
    with pytest.raises(ConfigError, match="not supported"):
        read_model_shape(write_config(tmp_path, **changes))


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


def test_layers_keep_their_number_and_unknown_tensors_are_refused():
    names = mapping_of("decoder.layers.7.mlp.linear_fc1.weight").hf_names
    assert names == ("model.layers.7.mlp.gate_proj.weight", "model.layers.7.mlp.up_proj.weight")
    with pytest.raises(ConfigError, match=r"decoder\.layers\.0\.mystery"):
        mapping_of("decoder.layers.0.mystery")
