"""What a model says of the trainable tokens of samples, written into the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ConfigError, RecordError
from vime_agents.trainer import Batch, TopTokens, TrainingSample
from vime_trainers.losses.config import LossConfig

LogProbField = Literal["old_logprobs", "reference_logprobs", "teacher_logprobs"]
FrozenField = LogProbField | Literal["teacher_top"]


class Scorer(Protocol):
    """A trainer, or a frozen model."""

    def logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[NDArray[np.float32]]:
        """As `vime_agents.trainer.Trainer.logprobs`."""
        ...


class Teacher(Scorer, Protocol):
    """A frozen model that also says which tokens it finds likeliest."""

    def top_logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        k: int,
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]],
        vocab_size: int,
    ) -> list[TopTokens]:
        """Of each row the k likeliest tokens, all of them below `vocab_size`, where its mask selects."""
        ...


def completed(
    batch: Batch, frozen: Mapping[FrozenField, Teacher], loss: LossConfig, *, vocab_size: int
) -> Batch:
    """The batch, with what the loss reads of its samples and frozen models can say.

    `vocab_size` is that of the model that is trained.

    Raises:
        RecordError: what the loss reads is still missing, or is of other tokens.
    """
    for field, model in frozen.items():
        if field == "teacher_top":
            batch = with_teacher_top(batch, model, loss.opd_top_k, vocab_size=vocab_size)
        else:
            batch = with_logprobs(batch, field, model)
    refuse_missing(batch.samples, loss, vocab_size=vocab_size)
    return batch


def check_top_k(top_k: int, *, vocab_size: int, teacher_vocab_size: int) -> None:
    """Raises ConfigError: the two vocabularies do not hold so many tokens and a rest, or the same ones."""
    smaller = min(vocab_size, teacher_vocab_size)
    most = smaller if vocab_size == teacher_vocab_size else smaller - 1
    if top_k > most:
        raise ConfigError(
            f"--opd-top-k {top_k}: at most {most} for a vocabulary of {vocab_size} and a teacher's of "
            f"{teacher_vocab_size}"
        )


def with_teacher_top(batch: Batch, teacher: Teacher, top_k: int, *, vocab_size: int) -> Batch:
    """The batch, with the teacher's `top_k` likeliest tokens in the samples that do not have any."""
    missing = [s for s in batch.samples if s.teacher_top is None]
    if not missing:
        return batch
    found = teacher.top_logprobs(
        [s.token_ids for s in missing],
        top_k,
        temperature=batch.temperature,
        masks=[s.loss_mask for s in missing],
        vocab_size=vocab_size,
    )
    filled = {s.id: replace(s, teacher_top=x) for s, x in zip(missing, found, strict=True)}
    return replace(batch, samples=tuple(filled.get(s.id, s) for s in batch.samples))


def with_logprobs(batch: Batch, field: LogProbField, model: Scorer) -> Batch:
    """The batch, with the model's log-probs in `field` of the samples that do not have them."""
    missing = [s for s in batch.samples if getattr(s, field) is None]
    if not missing:
        return batch
    found = model.logprobs(
        [s.token_ids for s in missing],
        temperature=batch.temperature,
        masks=[s.loss_mask for s in missing],
    )
    filled = {s.id: replace(s, **{field: x}) for s, x in zip(missing, found, strict=True)}
    return replace(batch, samples=tuple(filled.get(s.id, s) for s in batch.samples))


def refuse_missing(samples: Sequence[TrainingSample], loss: LossConfig, *, vocab_size: int) -> None:
    """Raises RecordError: a sample lacks log-probs that the loss reads."""
    needed = tuple(name for name in loss.sample_fields if name != "teacher_top")
    if loss.loss_type != "sft_loss":
        needed = ("rollout_logprobs", *needed)
    for sample in samples:
        for name in needed:
            values = getattr(sample, name)
            if values is None or np.isnan(values[sample.loss_mask]).any():
                raise RecordError(f"sample {sample.id}: this loss reads {name}, which it does not have")
        if loss.opd_top_k:
            _check_teacher_top(sample, loss.opd_top_k, vocab_size)


def _check_teacher_top(sample: TrainingSample, top_k: int, vocab_size: int) -> None:
    top = sample.teacher_top
    if top is None:
        raise RecordError(f"sample {sample.id}: this loss reads teacher_top, which it does not have")
    if top.num_top != top_k:
        raise RecordError(f"sample {sample.id}: teacher_top has {top.num_top} tokens a place, not {top_k}")
    if top.ids.max() >= vocab_size:
        raise RecordError(
            f"sample {sample.id}: teacher_top has token {top.ids.max()}, and the model {vocab_size} tokens: "
            "the teacher must have the same vocabulary"
        )
