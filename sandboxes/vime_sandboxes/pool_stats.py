"""What a pool of sandboxes did, in numbers."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NUM_SAMPLES = 1000
"""Newest durations that percentiles are taken of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counts are since the pool was made; durations are in seconds, NaN where there was none."""

    open: int
    """Sandboxes that take room now: lent, warm, being made, being closed."""
    lent: int
    warm: int
    waiting: int
    """Callers of `create` that have no sandbox yet."""
    boots: int
    hand_outs: int
    warm_hand_outs: int
    """Those that found a sandbox ready."""
    boot_p50_s: float
    boot_p95_s: float
    wait_p50_s: float
    """From the call of `create` to its end."""
    wait_p95_s: float
    hand_out_p50_s: float
    """Of a warm sandbox: whether it lives, and its time set anew."""
    hand_out_p95_s: float
    failures: Mapping[str, int]
    """By type: boots that failed, and warm sandboxes that were dead (as `dead`)."""

    def metrics(self) -> dict[str, float]:
        """The numbers of a whole run, by the names that reports have."""
        numbers = {
            "sandbox_boots": float(self.boots),
            "sandbox_warm_share": self.warm_hand_outs / self.hand_outs if self.hand_outs else math.nan,
            "sandbox_boot_p50_s": self.boot_p50_s,
            "sandbox_boot_p95_s": self.boot_p95_s,
            "sandbox_wait_p50_s": self.wait_p50_s,
            "sandbox_wait_p95_s": self.wait_p95_s,
            "sandbox_failures": float(sum(self.failures.values())),
        }
        return {name: value for name, value in numbers.items() if not math.isnan(value)}


class Recorder:
    """What `PoolStats` is made of. Not thread-safe."""

    def __init__(self) -> None:
        self.boots = self.hand_outs = self.warm_hand_outs = 0
        self.boot_s: deque[float] = deque(maxlen=NUM_SAMPLES)
        self.wait_s: deque[float] = deque(maxlen=NUM_SAMPLES)
        self.hand_out_s: deque[float] = deque(maxlen=NUM_SAMPLES)
        self.failures: Counter[str] = Counter()

    def stats(self, *, open_now: int, lent: int, warm: int, waiting: int) -> PoolStats:
        """All of it, with what is now."""
        return PoolStats(
            open=open_now,
            lent=lent,
            warm=warm,
            waiting=waiting,
            boots=self.boots,
            hand_outs=self.hand_outs,
            warm_hand_outs=self.warm_hand_outs,
            boot_p50_s=percentile(self.boot_s, 50),
            boot_p95_s=percentile(self.boot_s, 95),
            wait_p50_s=percentile(self.wait_s, 50),
            wait_p95_s=percentile(self.wait_s, 95),
            hand_out_p50_s=percentile(self.hand_out_s, 50),
            hand_out_p95_s=percentile(self.hand_out_s, 95),
            failures=dict(self.failures),
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of them do not exceed; NaN of none."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]
