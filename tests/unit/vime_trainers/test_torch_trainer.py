"""The torch trainer against transformers and torch's own optimizer, one row at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.integration.megatron import oracle
from tests.unit.docs.training_page import undocumented
from tests.unit.vime_agents.episodes import make_episode
from vime_agents.errors import CheckpointError, ConfigError, NonFiniteError, RecordError
from vime_agents.learning.advantages import dr_grpo
from vime_agents.learning.samples import build_batch
from vime_agents.token_log import Piece, SampledTokens, TokenLog
from vime_agents.trainer import TopTokens
from vime_trainers.losses.config import LossConfig
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.sample_logprobs import check_top_k
from vime_trainers.torch_settings import refuse_megatron_settings
from vime_trainers.torch_trainer import TorchTrainer

LOSS = LossConfig(tis_clip=oracle.TIS_CLIP, entropy_coef=oracle.ENTROPY_COEF, kl_loss_coef=oracle.KL_COEF)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch") / "model"
    oracle.make_model("qwen3", folder)
    return folder


def trainer_of(model: Path, loss: LossConfig = LOSS, **settings: object) -> TorchTrainer:
    values = {"max_tokens_per_gpu": 64, "lr": oracle.LR, "clip_grad": oracle.CLIP_GRAD} | settings
    return TorchTrainer(MegatronConfig(hf_checkpoint=str(model), loss=loss, **values))  # type: ignore[arg-type]


@pytest.mark.parametrize("max_tokens", [40, 64, 4096])
def test_updates_are_those_of_plain_torch_whatever_the_padding(model: Path, max_tokens: int) -> None:
    batch = oracle.make_batch(9)
    loss, _, norm = oracle.gradients(oracle.load(model), batch)
    trainer = trainer_of(
        model,
        max_tokens_per_gpu=max_tokens,
        adam_eps=oracle.ADAM_EPS,
        weight_decay=oracle.WEIGHT_DECAY,
    )
    first = trainer.update(batch)
    assert (first["loss"], first["grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
    trainer.update(batch)
    expected = oracle.train(oracle.load(model), batch, 2)
    for name, value in trainer.weights():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", oracle.ROW_LOSSES)
def test_losses_of_whole_rows(model: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(oracle.__file__).parent)
    loss, norm, rejected = oracle.row_loss_and_norm(oracle.load(model), oracle.row_batch(name), name)
    found = trainer_of(model, LossConfig(**oracle.ROW_LOSSES[name])).update(oracle.row_batch(name))
    assert (found["loss"], found["grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
    assert found.get("rejected_fraction", 0.0) == pytest.approx(rejected)


def test_log_probs_are_those_of_transformers_where_they_are_wanted(model: Path) -> None:
    batch = oracle.make_batch(5)
    rows, masks = [s.token_ids for s in batch.samples], [s.loss_mask for s in batch.samples]
    trainer, reference = trainer_of(model), oracle.load(model)
    everything = trainer.logprobs(rows, temperature=oracle.TEMPERATURE)
    for row, mask, whole, part in zip(
        rows,
        masks,
        everything,
        trainer.logprobs(rows, temperature=oracle.TEMPERATURE, masks=masks),
        strict=True,
    ):
        table = oracle.log_softmax(reference, row, oracle.TEMPERATURE).detach().numpy()
        expected = table[np.arange(len(row) - 1), row[1:]]
        assert np.isnan(whole[0])
        np.testing.assert_allclose(whole[1:], expected, atol=1e-5)
        np.testing.assert_allclose(part, np.where(mask, whole, np.nan), atol=1e-5)


def test_a_resumed_trainer_goes_on_bit_by_bit(model: Path, tmp_path: Path) -> None:
    batch = oracle.make_batch(9)
    trainer = trainer_of(model, lr_warmup_iters=3)
    trainer.update(batch)
    trainer.save(tmp_path)
    expected = trainer.update(batch)
    again = trainer_of(model, lr_warmup_iters=3)
    again.load(tmp_path)
    found = again.update(batch)
    assert (again.version, found["lr"]) == (2, pytest.approx(oracle.LR * 2 / 3))
    assert {k: v for k, v in found.items() if not k.endswith(("_s", "_gb"))} == {
        k: v for k, v in expected.items() if not k.endswith(("_s", "_gb"))
    }
    mine, others = dict(again.weights()), dict(trainer.weights())
    assert all(torch.equal(mine[name], others[name]) for name in mine)
    with pytest.raises(CheckpointError, match="empty"):
        trainer.save(tmp_path)


def test_a_folder_without_a_checkpoint_is_none(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        trainer_of(model).load(tmp_path)


def test_what_is_not_finite_stops_before_the_step_with_the_row(model: Path) -> None:
    trainer = trainer_of(model)
    before = {name: value.clone() for name, value in trainer.weights()}
    batch = oracle.make_batch(3)
    bad = replace(
        batch.samples[1], weights=np.where(batch.samples[1].loss_mask, np.inf, 0).astype(np.float32)
    )
    with pytest.raises(NonFiniteError, match="e1/agent/0"):
        trainer.update(replace(batch, samples=(batch.samples[0], bad, batch.samples[2])))
    assert all(torch.equal(before[name], value) for name, value in trainer.weights())


def test_every_metric_has_a_row_in_the_docs_and_utilisation_is_of_the_models_operations(model: Path) -> None:
    """Of the operations that torch counts of each row's forward pass alone, three times."""
    batch = oracle.make_batch(3)
    found = trainer_of(model, peak_tflops=0.5).update(batch)
    assert undocumented(found) == set()
    assert undocumented({"reward/score", "grad_norm/nothing", "los", "group_size/4"}) == {"los"}
    plain, counted = oracle.load(model), 0.0
    for sample in batch.samples:
        ids, wanted = torch.tensor(sample.token_ids[None, :-1].astype(np.int64)), sample.loss_mask[1:]
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            plain(ids, use_cache=False, logits_to_keep=torch.from_numpy(np.flatnonzero(wanted)))
        counted += counter.get_total_flops()
    seconds = found["forward_backward_s"] + found["optimizer_s"]
    # torch counts the pairs of attention above the diagonal too.
    assert found["mfu"] * seconds * 0.5e12 == pytest.approx(3 * counted, rel=0.15)
    assert found["mfu"] * seconds * 0.5e12 < 3 * counted


def test_an_empty_batch_is_counted_and_makes_no_step(model: Path) -> None:
    trainer = trainer_of(model)
    assert trainer.update(replace(oracle.make_batch(1), samples=()))["num_skipped_updates"] == 1.0
    assert trainer.version == 0


def test_episodes_of_which_nothing_may_be_trained_make_no_step(model: Path) -> None:
    """Plan 47: no NaN, no weight moved, and it is counted."""
    log = TokenLog()
    log.extend([Piece(token_ids=(1, 2), source="user")], turn=0)
    tokens = SampledTokens(token_ids=(3, 4), logprobs=(-1.0, -1.0), versions=((0, 0, 2),))
    log.append_sampled(tokens, turn=0, trainable=False)
    episodes = [make_episode(name, "g", reward, log=log) for name, reward in (("a", 1.0), ("b", 0.0))]
    batch = build_batch(episodes, estimator=dr_grpo, temperature=1.0, keep_zero_advantage=True)
    assert batch.samples == ()
    trainer = trainer_of(model)
    before = {name: value.clone() for name, value in trainer.weights()}
    assert trainer.update(batch)["num_skipped_updates"] == 1.0
    assert trainer.version == 0
    assert all(torch.equal(before[name], value) for name, value in trainer.weights())


def test_adams_first_step_is_the_learning_rate_against_the_gradients_sign(model: Path) -> None:
    """Plan 57."""
    batch = oracle.make_batch(9)
    _, gradients, _ = oracle.gradients(oracle.load(model), batch)
    trainer = trainer_of(model, clip_grad=0.0, weight_decay=0.0, adam_eps=1e-12)
    before = {name: value.clone() for name, value in trainer.weights()}
    trainer.update(batch)
    for name, value in trainer.weights():
        clear = gradients[name].abs() > 1e-5  # the signs of smaller ones are those of rounding
        expected = before[name] - oracle.LR * gradients[name].sign()
        torch.testing.assert_close(value[clear], expected[clear], rtol=0, atol=1e-6)


def test_a_sample_without_what_the_loss_reads_is_refused(model: Path) -> None:
    with pytest.raises(RecordError, match="teacher_logprobs"):
        trainer_of(model, LossConfig(opd_kl_coef=1.0)).update(oracle.make_batch(2))


def test_a_frozen_reference_is_asked_by_the_trainer(model: Path, tmp_path: Path) -> None:
    oracle.make_model("llama", tmp_path / "llama")
    loss = LossConfig(kl_coef=0.1, kl_reference="sample")
    batch = oracle.make_batch(4)
    rows, masks = [s.token_ids for s in batch.samples], [s.loss_mask for s in batch.samples]
    known = TorchTrainer(MegatronConfig(hf_checkpoint=str(tmp_path / "llama"))).logprobs(
        rows, temperature=batch.temperature, masks=masks
    )
    given = tuple(replace(s, reference_logprobs=x) for s, x in zip(batch.samples, known, strict=True))
    expected = trainer_of(model, loss).update(replace(batch, samples=given))
    found = trainer_of(model, loss, ref_load=str(tmp_path / "llama")).update(batch)
    assert (found["loss"], found["grad_norm"]) == pytest.approx((expected["loss"], expected["grad_norm"]))


@pytest.mark.parametrize("top_k", [8, 80])
def test_a_teachers_top_tokens_are_asked_for_by_the_trainer(model: Path, tmp_path: Path, top_k: int) -> None:
    oracle.make_model("qwen2", tmp_path / "teacher")
    batch = oracle.make_batch(4)
    loss, norm, divergence = oracle.distillation_loss(
        oracle.load(model), oracle.load(tmp_path / "teacher"), batch, top_k
    )
    config = LossConfig(opd_kl_coef=oracle.DISTILLATION, opd_top_k=top_k)
    found = trainer_of(model, config, opd_teacher_load=str(tmp_path / "teacher")).update(batch)
    expected = {"loss": loss, "grad_norm": norm, "kl_teacher": divergence}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("num_top", "highest", "told"),
    [
        (None, 0, "reads teacher_top"),
        (3, 9, "3 tokens a place, not 2"),
        (2, 131, "token 131, and the model 131"),
    ],
)
def test_top_tokens_that_do_not_fit_are_refused(
    model: Path, num_top: int | None, highest: int, told: str
) -> None:
    batch = oracle.make_batch(1)
    if num_top is not None:
        count = batch.samples[0].loss_mask.sum()
        ids = np.tile(np.arange(highest, highest - num_top, -1, dtype=np.int32), (count, 1))
        shares = np.full((count, num_top + 1), 1 / (num_top + 1), np.float32)
        top = TopTokens(ids=ids, logprobs=np.log(shares))
        batch = replace(batch, samples=(replace(batch.samples[0], teacher_top=top),))
    with pytest.raises(RecordError, match=told):
        trainer_of(model, LossConfig(opd_kl_coef=1.0, opd_top_k=2)).update(batch)


@pytest.mark.parametrize(("top_k", "theirs", "most"), [(132, 131, 131), (131, 140, 130), (131, 90, 89)])
def test_more_top_tokens_than_both_vocabularies_hold_are_refused(top_k: int, theirs: int, most: int) -> None:
    check_top_k(most, vocab_size=131, teacher_vocab_size=theirs)
    with pytest.raises(ConfigError, match=f"--opd-top-k {top_k}: at most {most}"):
        check_top_k(top_k, vocab_size=131, teacher_vocab_size=theirs)


def test_settings_that_only_megatron_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--tensor-model-parallel-size 2.*--trainer torch"):
        refuse_megatron_settings(MegatronConfig(hf_checkpoint="m", tensor_model_parallel_size=2))
    with pytest.raises(ConfigError, match="--bf16 True"):
        refuse_megatron_settings(MegatronConfig(hf_checkpoint="m", bf16=True))
    refuse_megatron_settings(MegatronConfig(hf_checkpoint="m", lr=1.0, clip_grad=0.0))
