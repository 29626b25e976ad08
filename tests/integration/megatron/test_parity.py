"""The trainer against transformers and plain torch: one process, and every way of splitting it over two."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.integration.megatron import oracle
from tests.integration.megatron.ranks import run_ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ALONE = {
    # 4096: all rows in one micro-batch; 64: several; 40: nearly one row in each.
    "one-micro-batch": {"max_tokens_per_gpu": 4096},
    "several-micro-batches": {"max_tokens_per_gpu": 64},
    "small-micro-batches": {"max_tokens_per_gpu": 40},
}
RECOMPUTE = {"recompute": {"recompute_granularity": "full", "resume_as": {}}}
TWO = {
    "dp2": {},
    "dp2-distributed-optimizer": {"use_distributed_optimizer": True, "resume_as": {}},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2-sequence-parallel": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        # Saved under tensor parallelism, read under pipeline parallelism.
        "resume_as": {
            "tensor_model_parallel_size": 1,
            "sequence_parallel": False,
            "pipeline_model_parallel_size": 2,
        },
    },
    "pp2": {"pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2, "max_tokens_per_gpu": 32},
}
FAMILIES = {
    "llama": ALONE,
    "qwen2": {"one-micro-batch": ALONE["one-micro-batch"]},
    "qwen3": ALONE | RECOMPUTE,
}
CASES = [(family, name) for family, layouts in FAMILIES.items() for name in layouts]
CASES += [("qwen3", name) for name in TWO]
ROW_LAYOUTS = ("small-micro-batches", "dp2", "tp2-sequence-parallel", "pp2", "cp2")
"""Of qwen3: where a row's tokens, or the ranks that see them, are split in a way of their own."""


class Runs:
    """What the workers found, kept as long as this lives; a family's processes are started on first use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @functools.cache  # noqa: B019
    def folder(self, family: str) -> Path:
        oracle.make_model(family, self.root / family)
        return self.root / family

    @functools.cache  # noqa: B019
    def teacher(self) -> Path:
        oracle.make_model("qwen2", self.root / "teacher")
        return self.root / "teacher"

    @functools.cache  # noqa: B019
    def oracle(self, family: str) -> dict[str, Any]:
        batch = oracle.make_batch(9)
        value, gradients, norm = oracle.gradients(oracle.load(self.folder(family)), batch)
        first = replace(batch, samples=batch.samples[:1])
        one = oracle.gradients(oracle.load(self.folder(family)), first)
        trained = oracle.train(oracle.load(self.folder(family)), batch, 2)
        model = oracle.load(self.folder(family))
        rows = {
            name: oracle.row_loss_and_norm(model, oracle.row_batch(name), name) for name in oracle.ROW_LOSSES
        }
        if family == "qwen3":
            teacher = oracle.load(self.teacher())
            for k in oracle.TOP_KS:
                rows[f"top {k}"] = oracle.distillation_loss(model, teacher, batch, k)
        return {
            "loss": value,
            "gradients": gradients,
            "norm": norm,
            "one_row": one,
            "trained": trained,
            "row_losses": rows,
        }

    @functools.cache  # noqa: B019
    def started(self, family: str, num_ranks: int) -> Path:
        output = self.root / f"{family}-{num_ranks}"
        output.mkdir(exist_ok=True)
        layouts = dict(FAMILIES[family] if num_ranks == 1 else TWO)
        self.teacher()
        for name in set(ROW_LAYOUTS) & set(layouts) if family == "qwen3" else ():
            layouts[name] = layouts[name] | {"row_losses": True}
        run_ranks(num_ranks, "worker.py", [self.folder(family)], output, layouts)
        return output

    @functools.cache  # noqa: B019
    def found(self, family: str, name: str) -> dict[str, Any]:
        num_ranks = 2 if name in TWO else 1
        return torch.load(self.started(family, num_ranks) / f"{name}.pt", weights_only=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("parity"))


def largest_relative_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert found.keys() == expected.keys()
    assert all(found[n].shape == expected[n].shape for n in expected)
    return max(((found[n] - e).norm() / e.norm()).item() for n, e in expected.items())


@pytest.mark.parametrize(("family", "name"), CASES)
def test_logprobs_are_those_of_transformers(runs, family, name):
    """Plan 53."""
    model = oracle.load(runs.folder(family))
    rows = [s.token_ids for s in oracle.make_batch(9).samples]
    *found, single = runs.found(family, name)["parity"]["logprobs"]
    assert np.isnan(single).tolist() == [True]
    for row, values in zip(rows, found, strict=True):
        with torch.no_grad():
            table = oracle.log_softmax(model, row, oracle.TEMPERATURE)
        expected = table.gather(1, torch.from_numpy(row[1:].astype(np.int64))[:, None])[:, 0]
        assert np.isnan(values[0])
        np.testing.assert_allclose(values[1:], expected.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_export_is_bit_equal_to_the_checkpoint_it_was_loaded_from(runs, family, name):
    """Plan 74."""
    stored = load_file(runs.folder(family) / "model.safetensors")
    found = runs.found(family, name)["parity"]
    assert found["weights"].keys() == stored.keys()
    for key, value in stored.items():
        assert torch.equal(found["weights"][key], value), key
        assert torch.equal(found["bf16"][key], value.to(torch.bfloat16)), key


@pytest.mark.parametrize(("family", "name"), CASES)
def test_loss_gradients_and_norm_are_those_of_plain_torch(runs, family, name):
    expected, found = runs.oracle(family), runs.found(family, name)["parity"]
    assert found["metrics"]["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["metrics"]["grad_norm"] == pytest.approx(expected["norm"], rel=1e-5)
    if "gradients" in found:
        assert largest_relative_error(found["gradients"], expected["gradients"]) < 1e-5


@pytest.mark.parametrize("loss", sorted(oracle.ROW_LOSSES))
@pytest.mark.parametrize("name", ROW_LAYOUTS)
def test_losses_of_whole_rows_and_of_the_users_own_are_those_of_plain_torch(runs, name, loss):
    """However a row is split over ranks: its ratio, its weight and its rejection are those of the row."""
    found = runs.found("qwen3", name)["row_losses"][loss]
    value, norm, rejected = runs.oracle("qwen3")["row_losses"][loss]
    assert found["loss"] == pytest.approx(value, rel=1e-4)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-4)
    if loss == "sft":
        assert "ess" not in found  # nothing was sampled, so nothing is compared
        return
    assert found["rejected_fraction"] == pytest.approx(rejected)
    if loss == "rejection":
        assert 0 < rejected < 1
    if loss == "custom":
        # The weights of the batch sum to 1; a metric cannot take the place of one of the trainer's.
        assert found["share"] == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("top_k", oracle.TOP_KS)
@pytest.mark.parametrize("name", ROW_LAYOUTS)
def test_distillation_by_top_tokens_of_a_teacher_of_another_family_is_that_of_whole_distributions(
    runs, name, top_k
):
    """The teacher is asked under the same layout."""
    found = runs.found("qwen3", name)["row_losses"][f"top {top_k}"]
    loss, norm, divergence = runs.oracle("qwen3")["row_losses"][f"top {top_k}"]
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert found["kl_teacher"] == pytest.approx(divergence, rel=1e-5)
    assert found["opd_top_mass"] < found["opd_teacher_top_mass"] < 1


@pytest.mark.parametrize("name", ROW_LAYOUTS)
def test_a_loss_that_reads_what_samples_lack_names_the_sample(runs, name):
    for message in runs.found("qwen3", name)["row_losses"]["no-teacher"]:
        assert "sample e0/agent/0" in message
        assert "teacher_logprobs" in message


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_batch_of_one_row_leaves_other_ranks_without_tokens_and_changes_nothing(runs, family, name):
    """Plan 45."""
    value, _, norm = runs.oracle(family)["one_row"]
    found = runs.found(family, name)["parity"]["one_row"]
    assert found["loss"] == pytest.approx(value, rel=1e-5)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_weights_after_two_clipped_adamw_updates(runs, family, name):
    expected, found = runs.oracle(family), runs.found(family, name)["training"]
    assert found["metrics"][0]["grad_norm"] > oracle.CLIP_GRAD
    assert largest_relative_error(found["weights"], expected["trained"]) < 1e-5


@pytest.mark.parametrize(("family", "name"), CASES)
def test_metrics_describe_the_batch(runs, family, name):
    batch = oracle.make_batch(9)
    found = runs.found(family, name)["parity"]
    logprobs = found["logprobs"]
    gaps = np.concatenate(
        [(row - s.rollout_logprobs)[s.loss_mask] for row, s in zip(logprobs, batch.samples, strict=False)]
    )
    ratios = np.minimum(np.exp(gaps), oracle.TIS_CLIP)
    expected = {
        "mean_rollout_train_logprob_diff": np.abs(gaps).mean(),
        "max_rollout_train_logprob_diff": np.abs(gaps).max(),
        "kl_k3": (np.exp(gaps) - 1 - gaps).mean(),
        "tis_clip_fraction": (np.exp(gaps) > oracle.TIS_CLIP).mean(),
        "ess": ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum()),
        "ratio_mean": 1.0,
        "clip_fraction": 0.0,
        "num_tokens": sum(len(s) for s in batch.samples),
        "num_trainable_tokens": len(gaps),
    }
    assert {k: found["metrics"][k] for k in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_an_empty_batch_makes_no_update_and_is_counted(runs, family, name):
    """Plan 47."""
    found = runs.found(family, name)["parity"]
    assert found["empty"]["num_skipped_updates"] == 1
    assert found["version"] == 2


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_nan_raises_on_every_rank_before_the_step_and_names_samples(runs, family, name):
    found = runs.found(family, name)["parity"]
    assert all("e0/agent/0" in message and "nan" in message for message in found["non_finite"])
    assert len(set(found["non_finite"])) == 1
    assert found["version_after_non_finite"] == found["version"]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_row_over_the_token_budget_is_refused_by_flag(runs, family, name):
    if ALONE["one-micro-batch"].items() <= (FAMILIES[family] | TWO)[name].items():
        assert runs.found(family, name)["parity"]["too_long"] == [""]  # 300 tokens fit into 4096
    else:
        messages = runs.found(family, name)["parity"]["too_long"]
        assert all("--max-tokens-per-gpu" in message for message in messages)


@pytest.mark.parametrize(
    "name", ["recompute", "dp2-distributed-optimizer", "tp2-sequence-parallel"], ids="saved-{}".format
)
def test_a_resumed_trainer_goes_on_as_the_one_that_saved(runs, name):
    found = runs.found("qwen3", name)["resume"]
    assert found["version"] == 1
    for went_on, again in zip(found["went_on"], found["again"], strict=True):
        if name == "tp2-sequence-parallel":  # read under another layout: other order of additions
            assert again["loss"] == pytest.approx(went_on["loss"], rel=1e-5)
            assert again["grad_norm"] == pytest.approx(went_on["grad_norm"], rel=1e-5)
        else:
            assert (again["loss"], again["grad_norm"]) == (went_on["loss"], went_on["grad_norm"])
    assert all("must exist and be empty" in message for message in found["not_empty"])
    assert all("no complete checkpoint" in message for message in found["nothing"])
