"""Age of the weights that sampled what is trained on."""

from __future__ import annotations

import numpy as np

from vime_agents.learning.staleness import staleness
from vime_agents.trainer import Batch, TrainingSample


def sample(versions: list[int]) -> TrainingSample:
    mask = np.array([v >= 0 for v in versions])
    some = np.where(mask, -1.0, np.nan).astype(np.float32)
    ones = mask.astype(np.float32)
    return TrainingSample(
        id="s",
        episode_id="s",
        group_id="g",
        agent="agent",
        token_ids=np.arange(len(versions), dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=some,
        advantages=ones,
        weights=ones,
        weight_versions=np.array(versions, np.int32),
    )


def test_it_is_counted_over_trainable_tokens_against_the_weights_that_are_updated() -> None:
    # 6.6 (70): tokens of versions 3, 3 and 4 that train version 5.
    batch = Batch(samples=(sample([-1, 3, 3, -1, 4]),), temperature=1.0)
    assert staleness([batch], version=5) == {"staleness_mean": 5 / 3, "staleness_max": 2.0}


def test_without_known_versions_there_is_nothing_to_say() -> None:
    assert staleness([Batch(samples=(), temperature=1.0)], version=5) == {}
