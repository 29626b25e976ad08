"""Advantages of a whole batch -> mean 0 and variance 1 over its trainable tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WHITEN_EPSILON = 1e-8


def whiten(
    rows: Sequence[NDArray[np.floating]], masks: Sequence[NDArray[np.bool_]], *, shift: bool = True
) -> list[NDArray[np.float64]]:
    """`(x - mean) / sqrt(variance + 1e-8)`, 0 where masked; where all are equal, `x - mean` is exactly 0.

    Mean and variance (ddof = 1) are over the trainable tokens of all rows together, so they must be all rows
    of the update. The mean becomes 0 whatever the rewards: in a batch of successes the least of them counts
    as bad.

    Args:
        rows: [num_tokens] each.
        masks: trainable tokens of each row.
        shift: False: `x / sqrt(variance + 1e-8)`, which keeps signs.
    """
    values = np.concatenate(
        [np.zeros(0), *(r[m].astype(np.float64) for r, m in zip(rows, masks, strict=True))]
    )
    if values.size < 2 or (values == values[0]).all():
        mean, scale = (values[0] if values.size else 0.0), 1.0
    else:
        mean, scale = values.mean(), np.sqrt(values.var(ddof=1) + WHITEN_EPSILON)
    centre = mean if shift else 0.0
    return [
        np.where(m, (np.where(m, r, 0.0).astype(np.float64) - centre) / scale, 0.0)
        for r, m in zip(rows, masks, strict=True)
    ]
