"""How per-token losses become one number: each trainable token's weight c, so that loss = sum of c * f.

Every denominator is taken once, over all rows of the update, before packing or splitting. The loss and its
gradient are then the same for any micro-batching, order and parallel layout.

Notation: row i has M_i trainable tokens, M = sum M_i; B rows, E episodes and P prompts (groups) have at least
one. Rows without any count nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ConfigError, UnknownIdError

Mask = NDArray[np.bool_]

AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "episode-mean",
    "prompt-mean",
)


def loss_weights(
    masks: Sequence[Mask],
    episode_ids: Sequence[Hashable],
    aggregation: str,
    *,
    group_ids: Sequence[Hashable] | None = None,
    norm_length: int | None = None,
) -> list[NDArray[np.float32]]:
    """The weight of every token of every row, 0 where masked.

    - token-mean: 1 / M (DAPO, arXiv:2503.14476)
    - seq-mean-token-mean: 1 / (B M_i) (GRPO, arXiv:2402.03300)
    - seq-mean-token-sum: 1 / B
    - seq-mean-token-sum-norm: 1 / (B norm_length), a constant whatever the rows' lengths (Dr.GRPO,
      arXiv:2503.20783)
    - episode-mean: 1 / (E * trainable tokens of the row's episode): one weight for each attempt of an agent,
      whatever number of rows it fans out to
    - prompt-mean: 1 / (P * trainable tokens of the row's group): one weight for each task

    Args:
        masks: one [num_tokens] mask for each row.
        episode_ids: the episode of each row.
        aggregation: one of AGGREGATIONS.
        group_ids: the group of each row; prompt-mean needs it.
        norm_length: of seq-mean-token-sum-norm, which alone uses it: the longest allowed response, say.

    Raises:
        UnknownIdError: another aggregation.
        ConfigError: `group_ids` or `norm_length` is missing, or is not used.
    """
    if aggregation not in AGGREGATIONS:
        raise UnknownIdError("loss aggregation", aggregation, AGGREGATIONS)
    if (norm_length is not None) != (aggregation == "seq-mean-token-sum-norm"):
        raise ConfigError(
            f"loss aggregation {aggregation} with a norm length of {norm_length}: seq-mean-token-sum-norm "
            "needs one, and no other uses it"
        )
    if group_ids is None and aggregation == "prompt-mean":
        raise ConfigError("loss aggregation prompt-mean: the group of each row is missing (group_ids)")
    counts = [int(m.sum()) for m in masks]
    of_episode = _totals(episode_ids, counts)
    groups = episode_ids if group_ids is None else group_ids
    of_group = _totals(groups, counts)
    num_tokens, num_rows = sum(counts), sum(c > 0 for c in counts)
    num_episodes, num_groups = _num_trained(of_episode), _num_trained(of_group)
    weights = []
    for mask, episode, group, count in zip(masks, episode_ids, groups, counts, strict=True):
        denominator = {
            "token-mean": num_tokens,
            "seq-mean-token-mean": num_rows * count,
            "seq-mean-token-sum": num_rows,
            "seq-mean-token-sum-norm": num_rows * (norm_length or 0),
            "episode-mean": num_episodes * of_episode[episode],
            "prompt-mean": num_groups * of_group[group],
        }[aggregation]
        weights.append(mask.astype(np.float32) / np.float32(max(denominator, 1)))
    return weights


def _totals(ids: Sequence[Hashable], counts: Sequence[int]) -> dict[Hashable, int]:
    totals: dict[Hashable, int] = defaultdict(int)
    for key, count in zip(ids, counts, strict=True):
        totals[key] += count
    return totals


def _num_trained(totals: dict[Hashable, int]) -> int:
    return sum(count > 0 for count in totals.values())
