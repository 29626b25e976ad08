"""The proof of a weight sync: engine and trainer give the same log-probs to the same fixed tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NUM_TOKENS = 64
FP32_TOLERANCE = 1e-3
"""Nats. Engine and trainer in float32 agree to about 1e-5; other weights differ by 0.1 and more."""
BF16_TOLERANCE = 0.5
"""Nats. In bfloat16 they differ by up to 0.3 at single tokens: this finds wrong weights and missing layers,
not a missed small update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDifference:
    """Where engine and trainer differ most."""

    position: int
    """Index into the probe's tokens."""
    token_id: int
    engine_logprob: float
    trainer_logprob: float

    @property
    def value(self) -> float:
        """Nats, >= 0; infinite where either side is not finite."""
        difference = abs(self.engine_logprob - self.trainer_logprob)
        return difference if math.isfinite(difference) else math.inf


def probe_tokens(vocab_size: int, *, num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    """Fixed token ids from all over the vocabulary.

    The multiples of the golden ratio modulo 1 are spread evenly at every length (H. Weyl, 1916), so that
    many rows of the embedding matrix take part, and the same ones at every sync.
    """
    golden = (math.sqrt(5) - 1) / 2
    return tuple(int((k * golden) % 1.0 * vocab_size) for k in range(1, num_tokens + 1))


def worst_difference(
    token_ids: Sequence[int], engine: Sequence[float], trainer: Sequence[float]
) -> ProbeDifference:
    """Compare two lists of log-probs of `token_ids`; entry 0 counts for nothing: nothing predicts it.

    Raises:
        ValueError: the lists are not equally long, or too short to compare.
    """
    if not len(token_ids) == len(engine) == len(trainer) or len(token_ids) < 2:
        raise ValueError(
            f"a probe of {len(token_ids)} tokens has {len(engine)} log-probs of the engine and "
            f"{len(trainer)} of the trainer; all must be equal and at least 2"
        )
    differences = (
        ProbeDifference(
            position=at,
            token_id=token_ids[at],
            engine_logprob=float(engine[at]),
            trainer_logprob=float(trainer[at]),
        )
        for at in range(1, len(token_ids))
    )
    return max(differences, key=lambda d: d.value)
