"""How per-token losses become one number: each trainable token's weight c, so that loss = sum of c * f.

Every denominator is taken once, over all rows of the update, before packing or splitting. The loss and its
gradient are then the same for any micro-batching, order and parallel layout.

Notation: row i has M_i trainable tokens, M = sum M_i; B rows and E episodes have at least one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import UnknownIdError

Mask = NDArray[np.bool_]

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "episode-mean")


def loss_weights(
    masks: Sequence[Mask], episode_ids: Sequence[Hashable], aggregation: str
) -> list[NDArray[np.float32]]:
    """The weight of every token of every row, 0 where masked.

    - token-mean: 1 / M (DAPO, arXiv:2503.14476)
    - seq-mean-token-mean: 1 / (B M_i) (GRPO, arXiv:2402.03300)
    - seq-mean-token-sum: 1 / B
    - episode-mean: 1 / (E * trainable tokens of the row's episode): one weight for each attempt of an agent,
      whatever number of rows it fans out to

    Args:
        masks: one [num_tokens] mask for each row.
        episode_ids: the episode of each row.
        aggregation: one of AGGREGATIONS.

    Raises:
        UnknownIdError: another aggregation.
    """
    if aggregation not in AGGREGATIONS:
        raise UnknownIdError("loss aggregation", aggregation, AGGREGATIONS)
    counts = [int(m.sum()) for m in masks]
    of_episode: dict[Hashable, int] = defaultdict(int)
    for episode, count in zip(episode_ids, counts, strict=True):
        of_episode[episode] += count
    num_rows = sum(c > 0 for c in counts)
    num_episodes = sum(c > 0 for c in of_episode.values())
    weights = []
    for mask, episode, count in zip(masks, episode_ids, counts, strict=True):
        denominator = {
            "token-mean": sum(counts),
            "seq-mean-token-mean": num_rows * count,
            "seq-mean-token-sum": num_rows,
            "episode-mean": num_episodes * of_episode[episode],
        }[aggregation]
        weights.append(mask.astype(np.float32) / np.float32(max(denominator, 1)))
    return weights
