"""Rows of one micro-batch, end to end -> tensors of one rank, and bounds that attention must not cross."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vime_trainers.batching.plan import alignment
from vime_trainers.batching.rows import VALUES, Row


@dataclass(frozen=True, slots=True)
class TopTensors:
    """What a teacher finds likeliest in the place of each target; see `vime_agents.trainer.TopTokens`."""

    ids: Tensor
    """[num_selected, N] int64"""
    log_probs: Tensor
    """[num_selected, N + 1]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass of one rank: its context-parallel share of some rows."""

    input_ids: Tensor
    """[1, num_tokens]"""
    bounds: Tensor
    """[num_packed_rows + 1] int32, where each row begins and the last one ends, counted over all
    context-parallel ranks; a row of padding is one of them."""
    longest: int
    """Tokens of the longest row, padding included, over all context-parallel ranks."""
    row_of_token: Tensor
    """[num_tokens] the row of each token, from 0 in this micro-batch; -1 for padding."""
    selected: Tensor
    """[num_selected] inputs whose prediction is wanted."""
    targets: Tensor
    """[num_selected]"""
    slots: Tensor
    """[num_selected] place of each prediction in an array of all predictions of the batch."""
    rows: Tensor
    """[num_selected] the row of each prediction, from 0 in this micro-batch."""
    num_rows: int
    """Rows of the micro-batch, on every context-parallel rank the same."""
    values: Tensor
    """[len(VALUES), num_selected] what is known of the targets; NaN where it is not."""
    teacher_top: TopTensors | None = None
    """None: the rows have none, or there is no row."""


def top_tensors(
    rows: Sequence[Row],
    chosen: NDArray[np.int64] | None = None,
    *,
    device: torch.device | str = "cpu",
) -> TopTensors | None:
    """The teacher's likeliest tokens of all wanted predictions of some rows, one row after the other.

    `chosen`: indices into these; None: all. None of rows that carry none.
    """
    found = [row.teacher_top for row in rows if row.teacher_top is not None]
    if not found:
        return None
    ids, log_probs = np.concatenate([x.ids for x in found]), np.concatenate([x.logprobs for x in found])
    if chosen is not None:
        ids, log_probs = ids[chosen], log_probs[chosen]
    return TopTensors(
        torch.from_numpy(ids.astype(np.int64)).to(device), torch.from_numpy(log_probs).to(device)
    )


def pack(
    rows: Sequence[Row],
    *,
    cp_rank: int = 0,
    cp_size: int = 1,
    tp_size: int = 1,
    device: torch.device | str = "cpu",
) -> MicroBatch:
    """Lay rows end to end; context-parallel rank r takes chunks r and 2 * cp_size - 1 - r of each.

    Rows are padded to whole chunks, and one row of padding makes the total divide by `tp_size` (sequence
    parallelism); with no row at all, that padding is the micro-batch, so that every rank runs a pass.
    """
    align = alignment(cp_size)
    lengths = [-(-len(row.inputs) // align) * align for row in rows]
    total, unit = sum(lengths), align * tp_size
    if total == 0 or total % unit:
        lengths.append(unit - total % unit)
    count = sum(lengths)
    ids, targets, slots, numbers = (np.zeros(count, np.int64) for _ in range(4))
    numbers[:] = -1
    mask, values = np.zeros(count, np.bool_), np.zeros((len(VALUES), count), np.float32)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    for number, (row, start) in enumerate(zip(rows, bounds, strict=False)):
        part = slice(start, start + len(row.inputs))
        numbers[part] = number
        ids[part], targets[part], mask[part] = row.inputs, row.targets, row.mask
        values[:, part] = row.values
        slots[part] = row.offset + np.arange(len(row.inputs))
    keep = _context_parallel_share(bounds, cp_rank, cp_size)
    selected = np.flatnonzero(mask[keep])
    chosen = keep[selected]
    return MicroBatch(
        input_ids=torch.from_numpy(ids[keep]).to(device)[None],
        bounds=torch.from_numpy(bounds).to(device),
        longest=int(max(lengths)),
        row_of_token=torch.from_numpy(numbers[keep]).to(device),
        selected=torch.from_numpy(selected).to(device),
        targets=torch.from_numpy(targets[chosen]).to(device),
        slots=torch.from_numpy(slots[chosen]).to(device),
        rows=torch.from_numpy(numbers[chosen]).to(device),
        num_rows=len(rows),
        values=torch.from_numpy(values[:, chosen]).to(device),
        teacher_top=top_tensors(rows, np.cumsum(mask)[chosen] - 1, device=device),
    )


def _context_parallel_share(bounds: NDArray[np.int32], rank: int, size: int) -> NDArray[np.int64]:
    """Indices of the tokens that a context-parallel rank holds, in order."""
    if size == 1:
        return np.arange(bounds[-1])
    parts = []
    for start, end in itertools.pairwise(bounds):
        chunk = (end - start) // (2 * size)
        first, second = start + rank * chunk, end - (rank + 1) * chunk
        parts += [np.arange(first, first + chunk), np.arange(second, second + chunk)]
    return np.concatenate(parts)
