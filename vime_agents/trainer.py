"""The trainer contract: TrainingSamples in, one optimizer step, new weights out. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopTokens:
    """The N tokens that a model finds likeliest in the place of each trainable token of a sample."""

    ids: NDArray[np.int32]
    """[num_trainable, N], a row for each trainable token in order; no id twice in a row."""
    logprobs: NDArray[np.float32]
    """[num_trainable, N + 1] their log-probs (nats); the last column is that of all other tokens together,
    -inf where there are none."""

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.logprobs.shape != (len(self.ids), self.ids.shape[1] + 1):
            raise RecordError(
                f"top tokens: ids {self.ids.shape} and log-probs {self.logprobs.shape} must be [tokens, N] "
                "and [tokens, N + 1], the last column for all other tokens together"
            )
        if self.ids.size and (self.ids.min() < 0 or (np.diff(np.sort(self.ids, axis=1), axis=1) == 0).any()):
            raise RecordError("top tokens: an id is negative, or twice among those of one place")
        if not np.isfinite(self.logprobs[:, :-1]).all():
            raise RecordError("top tokens: a log-prob of one of them is not finite")
        total = np.exp(self.logprobs.astype(np.float64)).sum(1)
        if not (np.abs(total - 1) < 1e-2).all():
            raise RecordError(
                f"top tokens: the probabilities of a place sum to {total[np.argmax(np.abs(total - 1))]:.3g}, "
                "not 1: the last column must hold what the others leave"
            )

    @property
    def num_top(self) -> int:
        """N."""
        return self.ids.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One token row with everything that the loss needs.

    The loss of a batch is `sum over all tokens of weights * f(token)`, with no further division: a token's
    weight does not depend on micro-batching, packing, order or parallel layout.
    """

    id: str
    """`<episode>/<agent>/<segment>`."""
    episode_id: str
    group_id: str
    agent: str
    token_ids: NDArray[np.int32]
    """[num_tokens]"""
    loss_mask: NDArray[np.bool_]
    """[num_tokens] true on trainable tokens; never on token 0, which nothing predicts."""
    rollout_logprobs: NDArray[np.float32]
    """[num_tokens] the engine's log-probs (nats); finite where `loss_mask`, NaN where nobody sampled. NaN on
    all trainable tokens too where others wrote them: only a likelihood loss takes such a sample."""
    advantages: NDArray[np.float32]
    """[num_tokens] 0 where masked."""
    weights: NDArray[np.float32]
    """[num_tokens] the token's share of the loss; 0 where masked, > 0 where trainable."""
    weight_versions: NDArray[np.int32]
    """[num_tokens] published update that sampled the token; -1 where nobody sampled."""
    old_logprobs: NDArray[np.float32] | None = None
    """[num_tokens] the trainer's before the first of several updates with this sample. This and the next two
    are finite where `loss_mask`; None: nobody computed them."""
    reference_logprobs: NDArray[np.float32] | None = None
    """[num_tokens] of the policy that a KL penalty holds on to."""
    teacher_logprobs: NDArray[np.float32] | None = None
    """[num_tokens] of the policy to distil."""
    teacher_top: TopTokens | None = None
    """What the policy to distil finds likeliest; None: nobody computed it."""
    values: NDArray[np.float32] | None = None
    """[num_tokens] a critic's, from when the advantages were made, of the state in which each token was
    sampled. This and the next are finite where `loss_mask`; None: there is no critic."""
    returns: NDArray[np.float32] | None = None
    """[num_tokens] what the critic is to learn."""

    def __post_init__(self) -> None:
        size = self.token_ids.shape
        for name in ("loss_mask", "rollout_logprobs", "advantages", "weights", "weight_versions"):
            if getattr(self, name).shape != size:
                raise RecordError(f"sample {self.id}: {name} {getattr(self, name).shape} != {size}")
        mask = self.loss_mask
        if len(size) != 1 or size[0] < 2 or not mask.any():
            raise RecordError(f"sample {self.id}: needs >= 2 tokens and >= 1 trainable one")
        if mask[0]:
            raise RecordError(f"sample {self.id}: token 0 is trainable but nothing predicts it")
        known = self.rollout_logprobs[mask]
        if not np.isfinite(known).all() and not np.isnan(known).all():
            raise RecordError(f"sample {self.id}: a trainable token has no log-prob")
        for name in ("old_logprobs", "reference_logprobs", "teacher_logprobs", "values", "returns"):
            values = getattr(self, name)
            if values is not None and (values.shape != size or not np.isfinite(values[mask]).all()):
                raise RecordError(f"sample {self.id}: {name} must be finite where trainable, {size} in all")
        if self.teacher_top is not None and len(self.teacher_top.ids) != mask.sum():
            raise RecordError(
                f"sample {self.id}: teacher_top has {len(self.teacher_top.ids)} rows for {mask.sum()} "
                "trainable tokens"
            )
        if not np.isfinite(self.advantages).all() or self.advantages[~mask].any():
            raise RecordError(f"sample {self.id}: advantages must be finite, and 0 where masked")
        if self.weights[~mask].any() or not (self.weights[mask] > 0).all():
            raise RecordError(f"sample {self.id}: weights must be > 0 exactly where trainable")

    def __len__(self) -> int:
        return int(self.token_ids.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update consumes."""

    samples: tuple[TrainingSample, ...]
    temperature: float
    """The sampling temperature: log-probs of trainer and engine are compared at it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """How the batch came about: groups, dropped episodes, reward mean, ..."""

    @property
    def num_tokens(self) -> int:
        """All tokens, context included."""
        return sum(len(s) for s in self.samples)

    @property
    def num_trainable(self) -> int:
        """Tokens that the loss sees."""
        return sum(int(s.loss_mask.sum()) for s in self.samples)


@runtime_checkable
class Trainer(Protocol):
    """Owns weights and an optimizer. Every method is a collective of all ranks."""

    version: int
    """Updates done so far."""

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step on the batch (empty batch: no step). Returns metrics.

        Raises:
            NonFiniteError: before the step, naming the sample ids.
        """
        ...

    def logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Log-prob of each token of each row given those before it; entry 0 of a row is NaN.

        With `masks`, [num_tokens] each, only of the tokens that they select; NaN elsewhere.
        """
        ...

    def weights(self) -> Iterable[tuple[str, Any]]:
        """(Hugging Face name, tensor), streaming, in a fixed order; complete on rank 0."""
        ...

    def save(self, folder: Path) -> None:
        """Write a checkpoint into the empty folder. Raises CheckpointError."""
        ...

    def load(self, folder: Path) -> None:
        """Read a checkpoint. Raises CheckpointError."""
        ...


@runtime_checkable
class CriticTrainer(Trainer, Protocol):
    """A trainer that also has a critic, saved and loaded with it."""

    def values(
        self,
        rows: Sequence[NDArray[np.int32]],
        masks: Sequence[NDArray[np.bool_]],
        *,
        ends: bool = False,
    ) -> list[NDArray[np.float32]]:
        """[num_tokens + 1] of each row: the value of the state before each token that its mask selects.

        The last entry is the value after the whole row, with `ends`; NaN where nothing was asked for.
        """
        ...

    def update_critic(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of the critic towards the samples' `returns` (empty batch: no step).

        Returns metrics. Raises NonFiniteError before the step.
        """
        ...
