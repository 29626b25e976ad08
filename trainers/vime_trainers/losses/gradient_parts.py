"""Which part of a model a parameter belongs to, for gradient norms by part."""

from __future__ import annotations

PARTS = ("embedding", "attention", "mlp", "norm", "head", "other")


def part_of(name: str) -> str:
    """The part, out of the parameter's name in transformers or in megatron-core."""
    for part, words in (
        ("norm", ("norm",)),  # before what it stands in
        ("embedding", ("embed",)),
        ("head", ("lm_head", "output_layer")),
        ("attention", ("attn", "attention")),
        ("mlp", ("mlp",)),
    ):
        if any(word in name for word in words):
            return part
    return "other"
