"""Operations of a row, against torch's own count of transformers models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from vime_trainers.batching.cost import LENGTH, read_row_cost, row_cost

SHAPE = {
    "vocab_size": 130,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=24),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, **EXPERTS, head_dim=16, num_experts=4, mlp_only_layers=[1]
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **(SHAPE | {"num_key_value_heads": 6}),
        **EXPERTS,
        n_routed_experts=4,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=20,
        kv_lora_rank=16,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
    ),
}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("num_tokens", [5, 16])
def test_operations_are_those_that_torch_counts(family: str, num_tokens: int) -> None:
    config = CONFIGS[family]()
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.arange(num_tokens)[None], use_cache=False)
    cost = row_cost(config.to_dict())
    # transformers computes the pairs above the diagonal too, and every prediction.
    everything = num_tokens * (cost.per_token + cost.per_prediction) + num_tokens**2 * cost.per_pair
    assert counter.get_total_flops() == everything


def test_a_token_sees_itself_and_those_before_it() -> None:
    cost = row_cost(transformers.LlamaConfig(**SHAPE).to_dict())
    assert cost(4, 0) == 4 * cost.per_token + 10 * cost.per_pair
    assert cost(4, 3) - cost(4, 0) == 3 * 2 * 48 * 130


def test_it_is_read_from_the_folder_of_a_model(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**SHAPE).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_row_cost(tmp_path) == row_cost(config)


def test_without_a_model_a_row_costs_its_length() -> None:
    assert LENGTH(7, 3) == 7
