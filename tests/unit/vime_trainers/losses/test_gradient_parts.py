"""Names of transformers and of megatron-core belong to the same parts."""

import pytest

from vime_trainers.losses.gradient_parts import part_of


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("embedding", ["model.embed_tokens.weight", "embedding.word_embeddings.weight"]),
        (
            "attention",
            ["model.layers.3.self_attn.q_proj.weight", "decoder.layers.3.self_attention.linear_qkv.bias"],
        ),
        ("mlp", ["model.layers.0.mlp.experts.3.up_proj.weight", "decoder.layers.0.mlp.router.weight"]),
        (
            "norm",
            [
                "model.norm.weight",
                "model.layers.0.self_attn.q_norm.weight",
                "decoder.layers.0.self_attention.q_layernorm.weight",
                "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
            ],
        ),
        ("head", ["lm_head.weight", "output_layer.weight"]),
        ("other", ["score.weight"]),
    ],
)
def test_part(part, names):
    assert {part_of(name) for name in names} == {part}
