"""Two trainer ranks as Ray actors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load_file

from tests.integration.megatron import oracle
from vime_agents.errors import ConfigError, TrainerError
from vime_agents.trainer import Batch
from vime_trainers.losses.config import LossConfig
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.ray.steps import run_steps
from vime_trainers.ray.trainer_group import TrainerGroup

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("group") / "model"
    oracle.make_model("qwen3", folder)
    return folder


@pytest.fixture
def group(model: Path) -> Iterator[TrainerGroup]:
    config = MegatronConfig(hf_checkpoint=str(model), lr=1e-2, max_tokens_per_gpu=64)
    group = TrainerGroup(config, num_ranks=2)
    yield group
    group.shutdown()


def wait_until_dead(process_id: int) -> None:
    """A killed actor's process is gone shortly after; it must not outlive the group."""
    for _ in range(300):
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {process_id} is still there")


def test_a_group_trains_exports_and_resumes_and_ends_with_the_first_error(group, model, tmp_path):
    batch = oracle.make_batch(9)
    rows = [s.token_ids for s in batch.samples]

    stored = load_file(model / "model.safetensors")
    first = group.export(tmp_path / "first.safetensors")
    exported = load_file(first.path)
    assert exported.keys() == first.tensors.keys()
    assert all(torch.equal(exported[name], value) for name, value in stored.items())
    assert first.num_bytes == sum(t.nbytes for t in exported.values())
    assert first.version == 0

    before = group.logprobs(rows, temperature=oracle.TEMPERATURE)
    metrics = group.update(batch)
    assert metrics["grad_norm"] > 0
    parts = [value for name, value in metrics.items() if name.startswith("grad_norm/")]
    assert len(parts) == 4  # embedding (tied: no head), attention, mlp, norm
    assert np.linalg.norm(parts) == pytest.approx(metrics["grad_norm"], rel=1e-5)
    assert 0.1 < metrics["peak_memory_gb"] < 100
    assert metrics["rollout_train_logprob_diff_p99"] <= metrics["max_rollout_train_logprob_diff"]
    assert group.version == 1
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    group.save(checkpoint)
    after = group.logprobs(rows, temperature=oracle.TEMPERATURE)
    assert not np.allclose(before[0][1:], after[0][1:])
    masks = [s.loss_mask for s in batch.samples]
    for row, mask, part in zip(
        after, masks, group.logprobs(rows, temperature=oracle.TEMPERATURE, masks=masks), strict=True
    ):
        np.testing.assert_array_equal(part, np.where(mask, row, np.nan).astype(np.float32))

    group.update(batch)
    group.load(checkpoint)
    assert group.version == 1
    for row, again in zip(after, group.logprobs(rows, temperature=oracle.TEMPERATURE), strict=True):
        np.testing.assert_array_equal(row, again)

    half = group.export(tmp_path / "half.safetensors", "bfloat16")
    assert half.version == 1
    assert {value.dtype for value in load_file(half.path).values()} == {torch.bfloat16}
    assert not list(tmp_path.glob(".*"))  # no partial file is left

    with pytest.raises(ConfigError, match="--max-tokens-per-gpu"):
        group.logprobs([np.zeros(100, np.int32)], temperature=1.0)
    with pytest.raises(ConfigError, match="--max-tokens-per-gpu"):
        group.update(batch)


def hf_logprobs(folder: Path, batch: Batch) -> list[np.ndarray]:
    """Of the trainable tokens, by transformers; NaN elsewhere."""
    model, rows = oracle.load(folder), []
    for sample in batch.samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None], use_cache=False).logits[0, :-1] / batch.temperature
        found = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0].numpy()
        rows.append(np.where(sample.loss_mask, np.concatenate([[np.nan], found]), np.nan).astype(np.float32))
    return rows


def test_a_reference_and_a_teacher_of_other_families_are_asked_by_the_trainer_itself(model, tmp_path):
    for family in ("llama", "qwen2"):
        oracle.make_model(family, tmp_path / family)
    batch = oracle.make_batch(9)
    known = zip(
        batch.samples,
        hf_logprobs(model, batch),
        hf_logprobs(tmp_path / "llama", batch),
        hf_logprobs(tmp_path / "qwen2", batch),
        strict=True,
    )
    complete = tuple(
        replace(s, old_logprobs=old, reference_logprobs=reference, teacher_logprobs=teacher)
        for s, old, reference, teacher in known
    )
    loss, norm, _ = oracle.row_loss_and_norm(
        oracle.load(model), replace(batch, samples=complete), "four-policies"
    )
    config = MegatronConfig(
        hf_checkpoint=str(model),
        ref_load=str(tmp_path / "llama"),
        opd_teacher_load=str(tmp_path / "qwen2"),
        max_tokens_per_gpu=64,
        loss=LossConfig(**oracle.ROW_LOSSES["four-policies"]),
    )
    group = TrainerGroup(config, num_ranks=2)
    try:
        found = run_steps(group, [batch], recompute_old=True)
    finally:
        group.shutdown()
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_rank_that_dies_is_named_and_takes_the_others_with_it(group):
    processes = group.process_ids()
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(TrainerError, match="rank 1 of 2 died"):
        group.update(oracle.make_batch(9))
    wait_until_dead(processes[0])
