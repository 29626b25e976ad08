"""The optimizer steps of one rollout: old log-probs once, then one batch after another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vime_agents.episode import Episode
from vime_agents.errors import TrainerError
from vime_agents.learning.credit import RowKey
from vime_agents.learning.samples import rows_to_value
from vime_agents.trainer import Batch, CriticTrainer, Trainer
from vime_trainers.sample_logprobs import with_logprobs

_LAST = ("lr", "critic_lr", "num_skipped_updates")
_SUMMED = (
    "num_tokens",
    "num_trainable_tokens",
    "num_micro_batches",
    "forward_backward_s",
    "optimizer_s",
    "critic_s",
)
_BY_STEP = ("loss", "pg_loss", "grad_norm", "value_loss", "critic_grad_norm")
"""Means over steps; whatever is not named here is a mean over trainable tokens."""


def run_steps(
    trainer: Trainer,
    batches: Sequence[Batch],
    *,
    recompute_old: bool = False,
    critic: bool = False,
    policy: bool = True,
) -> dict[str, float]:
    """One optimizer step for each batch, in order.

    Args:
        trainer: whose weights are still those that the rollout was played with.
        batches: of one rollout.
        recompute_old: give the samples the trainer's own log-probs from before the first step.
        critic: the trainer has a critic, which learns from each batch before the policy does.
        policy: False: the critic alone learns.

    Returns:
        Metrics of all steps together, see `merge_metrics`.
    """
    if recompute_old and policy:
        batches = [with_logprobs(batch, "old_logprobs", trainer) for batch in batches]
    steps = []
    for batch in batches:
        of_critic = cast(CriticTrainer, trainer).update_critic(batch) if critic else {}
        steps.append(of_critic | (trainer.update(batch) if policy else {}))
    return merge_metrics(steps)


def critic_values(
    trainer: CriticTrainer, episodes: Sequence[Episode], *, ends: bool
) -> dict[RowKey, NDArray[np.float32]]:
    """What the critic says of the rows that advantages are made of; with `ends`, of what follows them too."""
    rows = rows_to_value(episodes)
    segments = list(rows.values())
    if not segments:
        return {}
    found = trainer.values([s.token_ids for s in segments], [s.loss_mask for s in segments], ends=ends)
    return dict(zip(rows, found, strict=True))


def merge_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of several steps -> those of the rollout.

    Means over tokens stay means over tokens, whatever the steps' sizes; the largest stays the largest,
    percentiles too (an upper bound); `loss`, `pg_loss` and `grad_norm` are means over the steps made.
    """
    if not steps:
        raise TrainerError("a rollout without optimizer steps has no metrics")
    made = [step for step in steps if step.get("num_trainable_tokens")]
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        values = [step[name] for step in steps if name in step]
        merged[name] = values[-1] if name in _LAST else sum(values) if name in _SUMMED else max(values)
    for name in dict.fromkeys(name for step in made for name in step):
        if name in (*_LAST, *_SUMMED) or name.startswith(("max_", "peak_")) or "_p99" in name:
            continue
        pairs = [
            (step[name], 1.0 if _is_by_step(name) else step["num_trainable_tokens"])
            for step in made
            if name in step
        ]
        merged[name] = math.fsum(value * weight for value, weight in pairs) / math.fsum(w for _, w in pairs)
    seconds = _seconds(merged)
    if seconds:
        merged["tokens_per_s"] = merged["num_tokens"] / seconds
    if "mfu" in merged:
        merged["mfu"] = math.fsum(step["mfu"] * _seconds(step) for step in made) / seconds
    merged["num_optimizer_steps"] = float(len(made))
    return merged


def _seconds(metrics: Mapping[str, float]) -> float:
    return metrics.get("forward_backward_s", 0.0) + metrics.get("optimizer_s", 0.0)


def _is_by_step(name: str) -> bool:
    return name.split("/")[0] in _BY_STEP
