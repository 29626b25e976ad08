"""The summary is computed from the run's events, hand-made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vime_agents.config.train import TrainConfig
from vime_agents.storage.run_directory import RunDirectory
from vime_trainers.ray.curve import plot_curve
from vime_trainers.ray.summary import summarise


def evaluation(mean: float | None) -> dict[str, Any]:
    interval = (
        {"ci_low": None, "ci_high": None} if mean is None else {"ci_low": mean - 0.1, "ci_high": mean + 0.1}
    )
    counts = {"n": 10, "n_scored": 10, "ci_method": "wilson", "errors": {}}
    return {"mean": mean, **interval, **counts, "reward/success": mean, "seconds/eval": 2.0}


def update(number: int, difference: float | None, tokens: int) -> dict[str, Any]:
    return {
        "reward_mean": 0.5,
        "weight_version": number,
        "max_probe_logprob_diff": 1e-5 * number,
        "mean_rollout_train_logprob_diff": difference,
        "num_trainable_tokens": tokens,
        "tokens_sampled": 100,
        "tokens_trained": tokens,
        "tokens_lost_to_drift": 0,
        "episodes": 8,
        "seconds/rollout": 3.0,
        "seconds/train": 4.0,
    }


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    config = TrainConfig(env="e", hf_checkpoint="m", run_dir=str(tmp_path / "r"))
    with RunDirectory.create_or_resume(config.run_dir, config) as run:
        yield run


def test_a_summary_adds_up_over_restarts(run: RunDirectory) -> None:
    run.log("start", 0, {"max_probe_logprob_diff": 2e-6, "seconds/startup": 10.0})
    run.log("eval", 0, evaluation(0.4))
    run.log("train", 1, update(1, 1e-5, 30))
    run.log("start", 1, {"max_probe_logprob_diff": 9e-5, "seconds/startup": 11.0})
    run.log("train", 2, update(2, 4e-5, 10))
    run.log("train", 3, update(3, None, 0))
    run.log("eval", 3, evaluation(0.9))
    summary = summarise(run)
    assert (summary["eval_before"]["mean"], summary["eval_after"]["mean"]) == (0.4, 0.9)
    assert summary["eval_after"]["reward/success"] == 0.9
    assert (summary["updates"], summary["weight_version"], summary["episodes"]) == (3, 3, 24)
    assert summary["max_probe_logprob_diff"] == 9e-5
    # (1e-5 * 30 + 4e-5 * 10) / 40; an update without tokens has no say
    assert summary["mean_rollout_train_logprob_diff"] == pytest.approx(1.75e-5)
    assert (summary["tokens_sampled"], summary["tokens_trained"]) == (300, 40)
    assert summary["seconds"] == {"startup": 21.0, "rollout": 9.0, "train": 12.0, "eval": 4.0}
    plot_curve(run)
    assert run.curve_path.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_did_nothing_has_an_empty_summary_and_curve(run: RunDirectory) -> None:
    summary = summarise(run)
    assert summary["eval_before"] is summary["eval_after"] is summary["max_probe_logprob_diff"] is None
    assert summary["updates"] == summary["tokens_trained"] == 0
    plot_curve(run)
    assert run.curve_path.exists()


def test_an_evaluation_in_which_everything_failed_is_shown_as_such(run: RunDirectory) -> None:
    run.log("eval", 0, evaluation(None))
    assert summarise(run)["eval_before"]["mean"] is None
    plot_curve(run)
    assert run.curve_path.exists()


def test_a_run_without_rollouts_has_a_summary_and_a_curve_of_its_loss(tmp_path: Path) -> None:
    config = TrainConfig(
        env="E", hf_checkpoint="m", run_dir=str(tmp_path / "run"), loss_type="sft_loss", prompt_data="d"
    )
    with RunDirectory.create_or_resume(config.run_dir, config) as run:
        for number in (1, 2):
            metrics = {"loss": 1.0 / number, "num_trainable_tokens": 9, "tokens_trained": 9}
            run.log("train", number, {**metrics, "weight_version": number})
        summary = summarise(run)
        assert summary["tokens_trained"] == 18
        assert summary["episodes"] == summary["tokens_sampled"] == 0
        plot_curve(run)
        assert run.curve_path.stat().st_size > 1000
