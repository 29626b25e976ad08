"""Samples or bare tokens -> rows: what the model reads and what each input predicts. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vime_agents.trainer import TopTokens, TrainingSample

VALUES = (
    "rollout_logprobs",
    "advantages",
    "weights",
    "old_logprobs",
    "reference_logprobs",
    "teacher_logprobs",
    "values",
    "returns",
)
"""Fields of a sample that travel with its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Inputs of the model and what each predicts."""

    id: str
    offset: int
    """Where the row's predictions start in an array of all predictions of the batch."""
    inputs: NDArray[np.int64]
    """[num_inputs]"""
    targets: NDArray[np.int64]
    """[num_inputs] the token after each input."""
    mask: NDArray[np.bool_]
    """[num_inputs] predictions that are wanted."""
    values: NDArray[np.float32]
    """[len(VALUES), num_inputs] what is known of the targets; NaN where it is not."""
    teacher_top: TopTokens | None = None
    """Of the predictions that are wanted."""


def rows_of_samples(samples: Sequence[TrainingSample], *, teacher_top: bool = False) -> list[Row]:
    """One row per sample, cut after its last trainable token: what follows it changes no trainable one.

    `teacher_top`: whether the samples' likeliest tokens of the teacher go along.
    """
    rows, offset = [], 0
    for sample in samples:
        end = int(np.flatnonzero(sample.loss_mask)[-1])
        ids = sample.token_ids.astype(np.int64)
        unknown = np.full(len(sample), np.nan, np.float32)
        found = [getattr(sample, name) for name in VALUES]
        values = np.stack([unknown if x is None else x for x in found])[:, 1 : end + 1]
        row = Row(
            id=sample.id,
            offset=offset,
            inputs=ids[:end],
            targets=ids[1 : end + 1],
            mask=sample.loss_mask[1 : end + 1],
            values=values.astype(np.float32),
            teacher_top=sample.teacher_top if teacher_top else None,
        )
        rows.append(row)
        offset += end
    return rows


def rows_of_tokens(
    token_rows: Sequence[NDArray[np.int32]], masks: Sequence[NDArray[np.bool_]] | None = None
) -> list[Row]:
    """One row per token row, ids without padding.

    `masks` [num_tokens] select the predictions that are wanted (None: all), and a row ends with its last one.
    """
    rows, offset = [], 0
    for index, token_row in enumerate(token_rows):
        ids = np.asarray(token_row, dtype=np.int64)
        size = len(ids) - 1
        mask = np.ones(size, np.bool_)
        if masks is not None:
            mask = np.asarray(masks[index], np.bool_)[1:]
            size = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
        row = Row(
            id=f"row {index}",
            offset=offset,
            inputs=ids[:size],
            targets=ids[1 : size + 1],
            mask=mask[:size],
            values=np.zeros((len(VALUES), size), np.float32),
        )
        rows.append(row)
        offset += size
    return rows
