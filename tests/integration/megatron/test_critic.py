"""The critic against a sequence classifier of transformers, alone and split over two ranks in every way."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.megatron import critic_oracle, oracle
from tests.integration.megatron.ranks import run_ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ALONE = {"alone": {"resume_as": {}}}
TWO = {
    "dp2-distributed-optimizer": {"use_distributed_optimizer": True},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2-sequence-parallel": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "resume_as": {
            "tensor_model_parallel_size": 1,
            "sequence_parallel": False,
            "pipeline_model_parallel_size": 2,
        },
    },
    "pp2": {"pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2, "max_tokens_per_gpu": 32},
}
LAYOUTS = [*ALONE, *TWO]


class Runs:
    """What the workers found; they are started on first use."""

    def __init__(self, root: Path) -> None:
        self.policy, self.critic, self.root = root / "policy", root / "critic", root
        oracle.make_model("qwen3", self.policy)
        critic_oracle.make_model(self.critic)

    @functools.cache  # noqa: B019
    def started(self, num_ranks: int) -> Path:
        output = self.root / f"ranks-{num_ranks}"
        output.mkdir()
        layouts = ALONE if num_ranks == 1 else TWO
        run_ranks(num_ranks, "critic_worker.py", [self.policy, self.critic], output, layouts)
        return output

    def found(self, name: str) -> dict[str, Any]:
        return torch.load(self.started(1 if name in ALONE else 2) / f"{name}.pt", weights_only=False)

    @functools.cache  # noqa: B019
    def oracle(self) -> dict[str, Any]:
        model, batch = critic_oracle.load(self.critic), critic_oracle.make_batch()
        before = expected_values(model)
        steps = critic_oracle.train(model, batch, 3)
        return {"before": before, "steps": steps, "after": expected_values(model)}


def expected_values(model: torch.nn.Module) -> list[np.ndarray]:
    """V before each trainable token, and after the row."""
    found = []
    for sample in critic_oracle.make_batch().samples:
        with torch.no_grad():
            after = critic_oracle.state_values(model, sample.token_ids).numpy()
        values = np.full(len(sample) + 1, np.nan, np.float32)
        values[1:] = after
        values[np.flatnonzero(~sample.loss_mask)] = np.nan
        found.append(values)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("critic"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_are_read_where_tokens_are_predicted(runs, name):
    for found, expected in zip(runs.found(name)["trained"]["before"], runs.oracle()["before"], strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_three_clipped_updates_are_those_of_plain_torch(runs, name):
    found, expected = runs.found(name)["trained"], runs.oracle()
    losses, norms = zip(*expected["steps"], strict=True)
    assert [m["value_loss"] for m in found["metrics"]] == pytest.approx(losses, rel=1e-5)
    assert [m["critic_grad_norm"] for m in found["metrics"]] == pytest.approx(norms, rel=1e-4)
    lr = critic_oracle.LR
    assert [m["critic_lr"] for m in found["metrics"]] == pytest.approx([lr / 2, lr, lr])
    for values, wanted in zip(found["after"], expected["after"], strict=True):
        np.testing.assert_allclose(values, wanted, atol=2e-4, rtol=0)
    moved = np.nanmax(np.abs(np.concatenate(expected["after"]) - np.concatenate(expected["before"])))
    assert moved > 0.05  # so that the comparison says something


@pytest.mark.parametrize("name", LAYOUTS)
def test_metrics_describe_values_and_returns(runs, name):
    batch = critic_oracle.make_batch()
    masks = np.concatenate([s.loss_mask for s in batch.samples])
    old, target = (
        np.concatenate([getattr(s, n) for s in batch.samples])[masks] for n in ("values", "returns")
    )
    value = np.concatenate([v[:-1] for v in runs.oracle()["before"]])[masks]
    bounded = old + np.clip(value - old, -critic_oracle.VALUE_CLIP, critic_oracle.VALUE_CLIP)
    far = np.abs(value - old) > critic_oracle.VALUE_CLIP
    expected = {
        "value_mean": value.mean(),
        "return_mean": target.mean(),
        "value_clip_fraction": (far & ((bounded - target) ** 2 > (value - target) ** 2)).mean(),
        "explained_variance": 1 - (target - value).var() / target.var(),
        "num_trainable_tokens": masks.sum(),
    }
    metrics = runs.found(name)["trained"]["metrics"][0]
    assert {k: metrics[k] for k in expected} == pytest.approx(expected, rel=1e-4)
    assert 0 < expected["value_clip_fraction"] < 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_new_critic_says_nothing_of_anything_and_then_learns_without_touching_the_policy(runs, name):
    found = runs.found(name)["new"]
    assert np.nanmax(np.abs(np.concatenate(found["before"]))) == 0
    first, second = found["metrics"]
    assert second["value_loss"] < first["value_loss"]
    assert np.nanmax(np.abs(np.concatenate(found["after"]))) > 1e-3
    assert found["version"] == 0
    for key, value in found["weights"].items():
        assert torch.equal(value, found["policy_after"][key]), key


@pytest.mark.parametrize("name", ["alone", "tp2-sequence-parallel"])
def test_a_resumed_critic_goes_on_as_the_one_that_saved(runs, name):
    found = runs.found(name)["resumed"]
    for went_on, again in zip(found["went_on"], found["again"], strict=True):
        same = {k: v for k, v in went_on.items() if k != "critic_s"}
        if name == "alone":
            assert {k: again[k] for k in same} == same
        else:  # read under another layout: additions in another order may carry a value over a clip bound
            same.pop("value_clip_fraction", None)
            assert {k: again[k] for k in same} == pytest.approx(same, rel=1e-4)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_cannot_be_learned_from_is_refused_before_the_step(runs, name):
    found = runs.found(name)["trained"]
    assert all("sample e0/agent/0" in message for message in found["without"])
    assert all("value loss is nan" in message and "e0/agent/0" in message for message in found["nan"])
    assert found["empty"] == {"num_tokens": 0.0, "num_trainable_tokens": 0.0}
