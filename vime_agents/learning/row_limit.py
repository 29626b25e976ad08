"""Rows that are too long for one forward pass: cut them, or leave them out of the loss; always counted.

Without a limit the trainer refuses such a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from vime_agents.episode import Segment, Trajectory
from vime_agents.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimit:
    """Most tokens of a row, and what happens to a longer one."""

    max_tokens: int
    """Up to the last trainable token: what follows that one is not read."""
    on_excess: Literal["truncate", "drop"]
    """truncate: tokens beyond the limit are cut off, and the trajectory's reward belongs to what is left.
    drop: the row is not trained on; its episode stays in the baseline, and advantages are those of the whole
    episode."""

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise ConfigError(f"a limit of {self.max_tokens} tokens: the shortest row needs two")

    def exceeded_by(self, segment: Segment) -> bool:
        """Whether the row is too long."""
        return num_needed_tokens(segment) > self.max_tokens

    def num_lost(self, segment: Segment) -> int:
        """Trainable tokens that a row which is too long loses."""
        start = self.max_tokens if self.on_excess == "truncate" else 0
        return int(segment.loss_mask[start:].sum())


def num_needed_tokens(segment: Segment) -> int:
    """Tokens up to the last trainable one, 0 where there is none."""
    trainable = np.flatnonzero(segment.loss_mask)
    return int(trainable[-1]) + 1 if trainable.size else 0


def truncated(trajectory: Trajectory, limit: RowLimit) -> Trajectory:
    """Every row that is too long, cut; one may be left without a trainable token, and teaches nothing."""
    segments = tuple(
        _cut(segment, limit.max_tokens) if limit.exceeded_by(segment) else segment
        for segment in trajectory.segments
    )
    return replace(trajectory, segments=segments)


def _cut(segment: Segment, size: int) -> Segment:
    return Segment(
        token_ids=segment.token_ids[:size],
        logprobs=segment.logprobs[:size],
        spans=tuple(replace(s, end=min(s.end, size)) for s in segment.spans if s.start < size),
    )
