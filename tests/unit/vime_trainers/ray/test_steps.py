"""Several optimizer steps of one rollout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.errors import TrainerError
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.samples import build_batches
from vime_agents.trainer import Batch
from vime_trainers.ray.steps import merge_metrics, run_steps


class CountingTrainer:
    """Its log-prob of any token is -(1 + updates done)."""

    def __init__(self) -> None:
        self.version = 0
        self.batches: list[Batch] = []

    def update(self, batch: Batch) -> dict[str, float]:
        self.version += 1
        self.batches.append(batch)
        return {"loss": float(self.version), "num_trainable_tokens": float(batch.num_trainable)}

    def logprobs(self, rows: Any, *, temperature: float, masks: Any = None) -> list[np.ndarray]:
        assert temperature == 0.7
        value = np.float32(-1 - self.version)
        return [np.where(mask, value, np.float32(np.nan)) for mask in masks]


def batches() -> list[Batch]:
    episodes = [make_episode(f"{g}{i}", g, float(i)) for g in "ab" for i in range(2)]
    return build_batches(episodes, num_steps=2, estimator=dr_grpo, temperature=0.7)


def test_old_log_probs_are_those_from_before_the_first_step() -> None:
    trainer = CountingTrainer()
    run_steps(trainer, batches(), recompute_old=True)  # type: ignore[arg-type]
    assert trainer.version == 2
    for batch in trainer.batches:
        for sample in batch.samples:
            assert sample.old_logprobs is not None
            assert set(sample.old_logprobs[sample.loss_mask]) == {-1.0}
            assert np.isnan(sample.old_logprobs[~sample.loss_mask]).all()


def test_without_it_samples_stay_as_they_are() -> None:
    trainer, given = CountingTrainer(), batches()
    run_steps(trainer, given)  # type: ignore[arg-type]
    assert [b is g for b, g in zip(trainer.batches, given, strict=True)] == [True, True]


def test_metrics_of_steps_become_those_of_the_rollout() -> None:
    steps = [
        {
            "loss": 1.0,
            "entropy": 2.0,
            "max_x": 5.0,
            "lr": 0.1,
            "num_tokens": 40.0,
            "num_trainable_tokens": 30.0,
            "forward_backward_s": 3.0,
            "optimizer_s": 1.0,
            "num_skipped_updates": 0.0,
            "tokens_per_s": 10.0,
            "mfu": 0.3,
        },
        {
            "loss": 2.0,
            "entropy": 6.0,
            "max_x": 4.0,
            "lr": 0.2,
            "num_tokens": 20.0,
            "num_trainable_tokens": 10.0,
            "forward_backward_s": 1.0,
            "optimizer_s": 1.0,
            "num_skipped_updates": 0.0,
            "tokens_per_s": 10.0,
            "mfu": 0.6,
        },
        {"num_tokens": 0.0, "num_trainable_tokens": 0.0, "num_skipped_updates": 1.0},
    ]
    assert merge_metrics(steps) == pytest.approx(
        {
            "loss": 1.5,
            "entropy": 3.0,  # (2 * 30 + 6 * 10) / 40
            "max_x": 5.0,
            "lr": 0.2,
            "num_tokens": 60.0,
            "num_trainable_tokens": 40.0,
            "forward_backward_s": 4.0,
            "optimizer_s": 2.0,
            "num_skipped_updates": 1.0,
            "tokens_per_s": 10.0,
            "mfu": 0.4,  # (0.3 * 4 + 0.6 * 2) / 6
            "num_optimizer_steps": 2.0,
        }
    )


def test_a_rollout_of_empty_steps_says_so() -> None:
    skipped = {"num_tokens": 0.0, "num_trainable_tokens": 0.0, "num_skipped_updates": 1.0}
    assert merge_metrics([skipped]) == {**skipped, "num_optimizer_steps": 0.0}


def test_no_steps_at_all_is_an_error() -> None:
    with pytest.raises(TrainerError):
        merge_metrics([])
