"""Batches that the trainers are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vime_agents.trainer import Batch, TrainingSample

SHORTEST = 12


def ragged_lengths(num_rows: int, *, mu: float, sigma: float, longest: int, seed: int = 0) -> list[int]:
    """Tokens of each row: lognormal, as lengths of agents' episodes are, within [SHORTEST, longest]."""
    lengths = np.random.default_rng(seed).lognormal(mu, sigma, num_rows)
    return np.clip(lengths, SHORTEST, longest).astype(int).tolist()


def multi_turn_batch(lengths: Sequence[int], vocab_size: int, *, seed: int = 0) -> Batch:
    """Rows of so many tokens: a prompt of a quarter, then turns of the policy and answers to them.

    Advantages are of both signs; the weights are those of token-mean.
    """
    rng = np.random.default_rng(seed)
    masks = [_turns(length, rng) for length in lengths]
    total = sum(int(mask.sum()) for mask in masks)
    return Batch(
        samples=tuple(
            _sample(index, mask, float(rng.normal()), total, vocab_size, rng)
            for index, mask in enumerate(masks)
        ),
        temperature=1.0,
    )


def _turns(length: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """[length] what the policy sampled; the last token is its."""
    mask, position = np.zeros(length, np.bool_), max(1, length // 4)
    while position < length:
        end = position + int(rng.integers(8, 33))
        mask[position:end] = True
        position = end + int(rng.integers(4, 17))
    mask[-1] = True
    return mask


def conversation_batch(num_turns: int, *, prompt: int, turn: int, vocab_size: int) -> Batch:
    """One conversation: `prompt` tokens, then turns of `turn` tokens with as many of the env between them."""
    length = prompt + turn * (2 * num_turns - 1)
    place = np.arange(length) - prompt
    mask = (place >= 0) & (place // turn % 2 == 0)
    sample = _sample(0, mask, 1.0, int(mask.sum()), vocab_size, np.random.default_rng(0))
    return Batch(samples=(sample,), temperature=1.0)


def one_row_per_turn(batch: Batch) -> Batch:
    """Every turn of the policy as a row of its own, with all that came before it as context.

    Under token-mean the gradient is the same: each token keeps its weight, and sees what it saw.
    """
    samples = []
    for sample in batch.samples:
        edges = np.flatnonzero(np.diff(sample.loss_mask.astype(np.int8), prepend=0, append=0))
        for number, (start, end) in enumerate(edges.reshape(-1, 2)):
            samples.append(_part(sample, int(start), int(end), f"{sample.id}/{number}"))
    return replace(batch, samples=tuple(samples))


def _part(sample: TrainingSample, start: int, end: int, name: str) -> TrainingSample:
    mask = np.zeros(end, np.bool_)
    mask[start:] = True
    return replace(
        sample,
        id=name,
        token_ids=sample.token_ids[:end],
        loss_mask=mask,
        rollout_logprobs=np.where(mask, sample.rollout_logprobs[:end], np.nan).astype(np.float32),
        advantages=np.where(mask, sample.advantages[:end], 0).astype(np.float32),
        weights=np.where(mask, sample.weights[:end], 0).astype(np.float32),
        weight_versions=np.where(mask, sample.weight_versions[:end], -1).astype(np.int32),
    )


def _sample(
    index: int,
    mask: NDArray[np.bool_],
    advantage: float,
    total: int,
    vocab_size: int,
    rng: np.random.Generator,
) -> TrainingSample:
    return TrainingSample(
        id=f"e{index}/agent/0",
        episode_id=f"e{index}",
        group_id="g",
        agent="agent",
        token_ids=rng.integers(1, vocab_size, mask.size).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -10.0, np.nan).astype(np.float32),
        advantages=np.where(mask, advantage, 0).astype(np.float32),
        weights=np.where(mask, 1 / total, 0).astype(np.float32),
        weight_versions=np.where(mask, 0, -1).astype(np.int32),
    )
