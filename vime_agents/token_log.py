"""Policy calls -> Segments, by the prefix rule. Never re-tokenises, never realigns.

A call extends the open segment when its prompt starts with the tokens held so far; otherwise the
segment is closed and the whole prompt opens a new one (a *fork*). A sampled token is trainable in
exactly one segment: in a later one it is context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vime_agents.episode import Segment, Source, Span
from vime_agents.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rendered tokens with one source."""

    token_ids: tuple[int, ...]
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """What the engine answered to one call."""

    token_ids: tuple[int, ...]
    """[num_tokens] the stop token included, where the engine sampled one."""
    logprobs: tuple[float, ...]
    """[num_tokens] nats, of the distribution that was sampled from."""
    versions: tuple[tuple[int | None, int, int], ...]
    """(weight version, start, end): tile [0, num_tokens)."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise RecordError(f"{len(self.token_ids)} ids but {len(self.logprobs)} log-probs")
        position = 0
        for _, start, end in self.versions:
            if start != position or end <= start:
                raise RecordError(f"weight versions do not tile the tokens: {self.versions}")
            position = end
        if position != len(self.token_ids):
            raise RecordError(f"weight versions cover {position} of {len(self.token_ids)} tokens")


class TokenLog:
    """The running tokens of one agent in one episode."""

    def __init__(self) -> None:
        self._closed: list[Segment] = []
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._spans: list[Span] = []
        self.num_forks = 0
        self.num_sampled = 0

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the open segment; a copy."""
        return list(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, pieces: Sequence[Piece], *, turn: int) -> None:
        """Append tokens that nobody sampled."""
        for piece in pieces:
            if piece.source == "sampled":
                raise RecordError("sampled tokens enter by `append_sampled`")
            if piece.token_ids:
                self._append(piece.token_ids, piece.source, turn, reason=f"{piece.source} text")

    def fork(self, pieces: Sequence[Piece], *, turn: int) -> None:
        """Close the open segment; `pieces` is the whole new prompt."""
        self.num_forks += 1
        self._close()
        self.extend(pieces, turn=turn)

    def record_prompt(self, pieces: Sequence[Piece], *, turn: int) -> None:
        """Take the whole prompt of the next call: extend by its tail if it extends, else fork."""
        prompt = [t for p in pieces for t in p.token_ids]
        held = self._ids
        if prompt[: len(held)] != held:
            self.fork(pieces, turn=turn)
            return
        skip = len(held)
        for piece in pieces:
            tail = piece.token_ids[min(skip, len(piece.token_ids)) :]
            skip -= len(piece.token_ids) - len(tail)
            self.extend([Piece(token_ids=tail, source=piece.source)], turn=turn)

    def append_sampled(self, sampled: SampledTokens, *, turn: int, trainable: bool = True) -> None:
        """Append what the engine sampled after the tokens held so far.

        Raises:
            RecordError: no prompt yet, or a log-prob that is missing, not finite or positive.
        """
        if not self._ids:
            raise RecordError("nothing was prompted yet: a segment starts with its prompt")
        for at, value in enumerate(sampled.logprobs):
            if not np.isfinite(value) or value > 0:
                raise RecordError(f"turn {turn}: sampled token {at} has log-prob {value}")
        self.num_sampled += len(sampled.token_ids)
        why = "sampled by the policy" if trainable else "sampled by a policy that is not trained"
        for version, start, end in sampled.versions:
            ids, logprobs = sampled.token_ids[start:end], sampled.logprobs[start:end]
            self._append(ids, "sampled", turn, logprobs, version, trainable, why)

    def segments(self) -> tuple[Segment, ...]:
        """All segments so far; those without a sampled token are left out (nothing to learn from)."""
        open_segment = [self._build()] if self._ids else []
        every = [*self._closed, *open_segment]
        return tuple(s for s in every if any(p.source == "sampled" for p in s.spans))

    def _append(
        self,
        ids: Sequence[int],
        source: Source,
        turn: int,
        logprobs: Sequence[float] | None = None,
        version: int | None = None,
        trainable: bool = False,
        reason: str = "",
    ) -> None:
        start = len(self._ids)
        self._ids.extend(ids)
        self._logprobs.extend(logprobs if logprobs is not None else [float("nan")] * len(ids))
        span = Span(
            source=source,
            start=start,
            end=len(self._ids),
            turn=turn,
            weight_version=version,
            trainable=trainable,
            reason=reason,
        )
        self._spans.append(span)

    def _close(self) -> None:
        if self._ids:
            self._closed.append(self._build())
        self._ids, self._logprobs, self._spans = [], [], []

    def _build(self) -> Segment:
        return Segment(
            token_ids=np.asarray(self._ids, dtype=np.int32),
            logprobs=np.asarray(self._logprobs, dtype=np.float32),
            spans=tuple(self._spans),
        )
