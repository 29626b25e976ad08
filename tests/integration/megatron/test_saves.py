"""Checkpoints that are written while training goes on, by real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.megatron import oracle
from tests.integration.megatron.ranks import run_ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

LAYOUTS = {"tp2": {"tensor_model_parallel_size": 2, "use_distributed_optimizer": True}}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root: Path = tmp_path_factory.mktemp("saves")
    oracle.make_model("qwen3", root / "model")
    (root / "output").mkdir()
    oracle.make_model("deepseek_v3", root / "experts")
    run_ranks(2, "saves_worker.py", [root / "model", root / "experts"], root / "output", LAYOUTS)
    return torch.load(root / "output" / "tp2.pt", weights_only=False)


def same(first: list[Any], second: list[Any]) -> bool:
    """Losses and gradient norms of the next updates, weights after them and their number, bit for bit."""
    (metrics, weights, version), (others, other_weights, other_version) = first, second
    names = ("loss", "grad_norm", "value_loss", "critic_grad_norm", "lr")
    return (
        version == other_version
        and [[m[n] for n in names] for m in metrics] == [[m[n] for n in names] for m in others]
        and weights.keys() == other_weights.keys()
        and all(torch.equal(weights[n], other_weights[n]) for n in weights)
    )


def test_what_is_read_back_is_of_the_moment_of_the_save_though_updates_followed_at_once(found):
    # Equal metrics and weights two updates on: weights, both moments, steps and schedule were the same,
    # of the policy and of its critic.
    assert found["went on"][2] == 4
    assert same(found["went on"], found["at once"])
    assert same(found["went on"], found["in the background"])


def test_it_is_whole_only_when_it_is_said_to_be_and_alone(found):
    assert not found["whole too early"]
    assert found["finished"] == (True, True)
    assert all("in the background is not finished" in message for message in found["two"])


def test_a_write_that_fails_on_one_rank_is_told_by_all_and_the_next_save_is_sound(found):
    for message in found["broken"]:
        assert "broken: rank 1: " in message
        assert "No space left on device" in message
    assert all("at-once: rank 1: " in message for message in found["broken at once"])
    assert not found["broken is whole"]
    before, after = found["versions"]
    assert after == before + 1


def test_a_layout_that_keeps_the_experts_optimizer_elsewhere_is_refused_with_the_reason(found):
    assert found["experts"]["same"]
    for message in found["experts"]["other"]:
        assert "does not fit this trainer" in message
        assert "--expert-model-parallel-size" in message
        assert len(message) < 1000
