"""What a trainer rank writes of its weights, without Ray."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from safetensors.torch import load_file

from vime_trainers.ray.trainer_group import _Rank

BIAS = "model.layers.0.mlp.gate.e_score_correction_bias"


class Trainer:
    """Keeps a router's bias in float32 whatever is asked for, as checkpoints of DeepSeek-V3 have it."""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"model.norm.weight": (3,), BIAS: (2,)}

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        yield "model.norm.weight", torch.ones(3, dtype=dtype)
        yield BIAS, torch.full((2,), 1 / 3)


def test_a_bias_that_stays_in_float32_is_exported_beside_bfloat16_weights(tmp_path):
    rank = _Rank()
    rank.rank, rank.trainer = 0, Trainer()
    found = rank.export(str(tmp_path / "one.safetensors"), "bfloat16", 3)
    assert found is not None
    assert found.tensors == {"model.norm.weight": ((3,), "bfloat16"), BIAS: ((2,), "float32")}
    assert rank.export_folder(str(tmp_path), "bfloat16", 3, 10) == 3 * 2 + 2 * 4
    for path in ("one.safetensors", "model-00002-of-00002.safetensors"):
        assert torch.equal(load_file(tmp_path / path)[BIAS], torch.full((2,), 1 / 3))
