"""Rotary frequencies stretched to a longer context than the model was pretrained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """`rope_parameters` of config.json, other than the base."""

    kind: Literal["llama3", "yarn"]
    factor: float
    """Longer context / `original_max_position`."""
    original_max_position: int
    """Tokens of the context that the model was pretrained on."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than original_max_position / low_freq_factor are stretched by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than original_max_position / high_freq_factor stay as they are."""
    beta_fast: float = 32.0
    """yarn: waves that turn more often than this within the original context stay as they are."""
    beta_slow: float = 1.0
    """yarn: waves that turn less often than this are stretched by `factor`."""
    mscale: float = 1.0
    """yarn: cosines and sines are times m(mscale) / m(mscale_all_dim), m(x) = 0.1 x ln(factor) + 1."""
    mscale_all_dim: float = 0.0
    """yarn: in latent attention, attention scores are multiplied by m(mscale_all_dim)^2 (0: by 1)."""


def scaled_inv_freq(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Frequencies [head_dim / 2] (radians per token) -> those of the longer context, after Llama 3.1.

    Source: "The Llama 3 Herd of Models" (arXiv 2407.21783) and its reference code: wave lengths between the
    two bounds are mixed, linearly in `original_max_position / wave length`.
    """
    wave_length = 2 * math.pi / inv_freq
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_max_position / wave_length - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * inv_freq / scaling.factor + share * inv_freq
