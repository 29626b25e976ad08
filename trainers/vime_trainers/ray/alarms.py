"""Metrics of an update that say that something is wrong, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOW_ESS = 0.5
JUMP = 10.0
NOTICEABLE = 1e-3
"""Nats; a smaller difference of trainer and engine is rounding."""


class Alarms:
    """Compares each update with what is healthy, and with the update before it."""

    def __init__(self) -> None:
        self._usual: float | None = None

    def of(self, metrics: Mapping[str, Any]) -> list[str]:
        """A line for each thing to look at."""
        found = []
        ess = metrics.get("ess")
        if ess is not None and ess < LOW_ESS:
            found.append(
                f"ess {ess:.2f}: the trainer's and the engine's policies are far apart; look at "
                "mean_rollout_train_logprob_diff, take fewer --num-steps-per-rollout or a lower --lr"
            )
        if metrics.get("zero_advantage_share") == 1.0:
            found.append(
                "zero_advantage_share 1: in every group all rewards were the same, so nothing was learned; "
                "look at reward_mean (all right or all wrong?) and give other tasks"
            )
        if metrics.get("tokens_lost_to_drift"):
            found.append(
                f"tokens_lost_to_drift {metrics['tokens_lost_to_drift']:.0f}: sampled tokens that no row "
                "trains; look at forks, and at --renderer"
            )
        difference = metrics.get("mean_rollout_train_logprob_diff")
        if difference is not None:
            if self._usual is not None and difference > max(JUMP * self._usual, NOTICEABLE):
                found.append(
                    f"mean_rollout_train_logprob_diff {difference:.1e} was {self._usual:.1e}: the engine may "
                    "not hold the trainer's weights; look at max_probe_logprob_diff"
                )
            else:
                self._usual = difference
        return found
