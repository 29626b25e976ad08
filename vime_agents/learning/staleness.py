"""How old the weights were that sampled what is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vime_agents.trainer import Batch


def staleness(batches: Sequence[Batch], version: int) -> dict[str, float]:
    """Updates between the weights that sampled a token and those that it updates.

    Args:
        batches: of one rollout.
        version: weight version that the first optimizer step changes.

    Returns:
        `staleness_mean` and `staleness_max` over trainable tokens whose version is known; nothing without
        any. On-policy both are 0.
    """
    versions = [s.weight_versions[s.loss_mask] for batch in batches for s in batch.samples]
    known = np.concatenate(versions) if versions else np.empty(0, np.int32)
    known = known[known >= 0]
    if not known.size:
        return {}
    ages = version - known.astype(np.int64)
    return {"staleness_mean": float(ages.mean()), "staleness_max": float(ages.max())}
