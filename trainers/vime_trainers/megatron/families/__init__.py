"""Hugging Face <-> megatron-core: what a model's tensors are called, shaped and made of. Tables, no model.

To add a family: say in `FAMILIES` what its attention has, in `hf_config` how its `config.json` is read. A
tensor that is named or cut otherwise is one more line of `names`.
"""

from vime_trainers.megatron.families.hf_config import read_model_shape
from vime_trainers.megatron.families.names import Cut, Mapping, mapping_of, merge, split
from vime_trainers.megatron.families.rope import RopeScaling, scaled_inv_freq
from vime_trainers.megatron.families.shape import (
    FAMILIES,
    FLOAT32_TENSORS,
    ExpertShape,
    Family,
    LatentShape,
    ModelShape,
)

__all__ = [
    "FAMILIES",
    "FLOAT32_TENSORS",
    "Cut",
    "ExpertShape",
    "Family",
    "LatentShape",
    "Mapping",
    "ModelShape",
    "RopeScaling",
    "mapping_of",
    "merge",
    "read_model_shape",
    "scaled_inv_freq",
    "split",
]
