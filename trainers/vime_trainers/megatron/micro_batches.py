"""Rows of tokens -> packed micro-batches, the same number on every data-parallel rank.

Worked example: rows of 6, 3 and 4 tokens and a budget of 8. A row's last token predicts nothing, so the
inputs are 5, 2 and 3 long; two micro-batches hold them: [5 + 3] and [2]. Every rank makes the same plan from
the same batch, so nothing is communicated.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from numpy.typing import NDArray
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_agents.trainer import TrainingSample

VALUES = (
    "rollout_logprobs",
    "advantages",
    "weights",
    "old_logprobs",
    "reference_logprobs",
    "teacher_logprobs",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass of one rank: its context-parallel share of some rows."""

    input_ids: Tensor
    """[1, num_tokens]"""
    packed: PackedSeqParams
    """Bounds of the rows, over all context-parallel ranks."""
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


def rows_of_samples(samples: Sequence[TrainingSample]) -> list[Row]:
    """One row per sample, cut after its last trainable token: what follows it changes no trainable one."""
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
        )
        rows.append(row)
        offset += end
    return rows


def rows_of_tokens(
    token_rows: Sequence[NDArray[np.int32]], masks: Sequence[NDArray[np.bool_]] | None = None
) -> list[Row]:
    """One row per token row; `masks` [num_tokens] select the predictions that are wanted, None: all."""
    rows, offset = [], 0
    for index, token_row in enumerate(token_rows):
        ids = np.asarray(token_row, dtype=np.int64)
        size = len(ids) - 1
        mask = np.ones(size, np.bool_) if masks is None else np.asarray(masks[index], np.bool_)[1:]
        row = Row(
            id=f"row {index}",
            offset=offset,
            inputs=ids[:-1],
            targets=ids[1:],
            mask=mask,
            values=np.zeros((len(VALUES), size), np.float32),
        )
        rows.append(row)
        offset += size
    return rows


def plan(rows: Sequence[Row], *, max_tokens: int, num_ranks: int, align: int = 1) -> list[list[list[int]]]:
    """Which rows go into which micro-batch of which data-parallel rank: `[rank][micro_batch][row]`.

    Longest rows first: each goes to the rank with the fewest tokens so far, there into the first micro-batch
    with room. Ranks with fewer micro-batches get empty ones. `align`: rows are padded to a multiple of it.

    Raises:
        ConfigError: a row is longer than `max_tokens`.
    """
    sizes = [-(-len(row.inputs) // align) * align for row in rows]
    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    room: list[list[int]] = [[] for _ in range(num_ranks)]
    for index in sorted((i for i in range(len(rows)) if sizes[i]), key=lambda i: (-sizes[i], i)):
        size = sizes[index]
        if size > max_tokens:
            raise ConfigError(
                f"{rows[index].id} needs {size} tokens in one forward pass, but --max-tokens-per-gpu allows "
                f"{max_tokens} on each rank (times --context-parallel-size): raise one of them, or limit the "
                "episodes' length"
            )
        rank = loads.index(min(loads))
        loads[rank] += size
        bin_index = next((i for i, free in enumerate(room[rank]) if free >= size), len(room[rank]))
        if bin_index == len(room[rank]):
            room[rank].append(max_tokens)
            ranks[rank].append([])
        room[rank][bin_index] -= size
        ranks[rank][bin_index].append(index)
    most = max(len(r) for r in ranks)
    return [r + [[] for _ in range(most - len(r))] for r in ranks]


def pack(
    rows: Sequence[Row], *, cp_rank: int, cp_size: int, tp_size: int, device: torch.device
) -> MicroBatch:
    """Lay rows end to end; context-parallel rank r takes chunks r and 2 * cp_size - 1 - r of each.

    Rows are padded to whole chunks, and one row of padding makes the total divide by `tp_size` (sequence
    parallelism); with no row at all, that padding is the micro-batch, so that every rank runs a pass.
    """
    align = 2 * cp_size if cp_size > 1 else 1
    lengths = [-(-len(row.inputs) // align) * align for row in rows]
    total, unit = sum(lengths), align * tp_size
    if total == 0 or total % unit:
        lengths.append(unit - total % unit)
    count = sum(lengths)
    ids, targets, slots, numbers = (np.zeros(count, np.int64) for _ in range(4))
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
    cu = torch.from_numpy(bounds).to(device)
    longest = int(max(lengths))
    return MicroBatch(
        input_ids=torch.from_numpy(ids[keep]).to(device)[None],
        packed=PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=cu,
            cu_seqlens_kv=cu,
            cu_seqlens_q_padded=cu,
            cu_seqlens_kv_padded=cu,
            # The longest row, never the total: RoPE would take the pack for one row.
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        ),
        selected=torch.from_numpy(selected).to(device),
        targets=torch.from_numpy(targets[chosen]).to(device),
        slots=torch.from_numpy(slots[chosen]).to(device),
        rows=torch.from_numpy(numbers[chosen]).to(device),
        num_rows=len(rows),
        values=torch.from_numpy(values[:, chosen]).to(device),
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
