"""What a model says of the trainable tokens of samples, written into the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import RecordError
from vime_agents.trainer import Batch, TrainingSample
from vime_trainers.losses.config import LossConfig

LogProbField = Literal["old_logprobs", "reference_logprobs", "teacher_logprobs"]


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


def refuse_missing(samples: Sequence[TrainingSample], loss: LossConfig) -> None:
    """Raises RecordError: a sample lacks log-probs that the loss reads."""
    needed: tuple[str, ...] = loss.sample_fields
    if loss.loss_type != "sft_loss":
        needed = ("rollout_logprobs", *needed)
    for sample in samples:
        for name in needed:
            values = getattr(sample, name)
            if values is None or np.isnan(values[sample.loss_mask]).any():
                raise RecordError(f"sample {sample.id}: this loss reads {name}, which it does not have")
