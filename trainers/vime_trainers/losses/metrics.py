"""The metrics of an update, out of the sums that `token_loss` leaves."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.corrections import effective_sample_share
from vime_trainers.losses.histogram import quantile


def metrics_of(
    sums: Mapping[str, float], max_diff: float, abs_diffs: Tensor, loss: LossConfig
) -> dict[str, float]:
    """What a trainer reports of the loss.

    Args:
        sums: `TokenLoss.sums` by name, added up over micro-batches and ranks.
        max_diff: the largest `TokenLoss.max_abs_diff`.
        abs_diffs: `TokenLoss.abs_diffs`, added up likewise.
        loss: whose they are.
    """
    count = sums["count"]
    found = {"loss": sums["loss"], "entropy": sums["entropy"] / count}
    if loss.loss_type == "sft_loss":
        return found  # nothing was sampled, so there is nothing to compare with
    for field, name in (("reference_logprobs", "kl_reference"), ("teacher_logprobs", "kl_teacher")):
        if field in loss.sample_fields:
            found[name] = sums[name] / count
    if loss.opd_top_k:
        found["kl_teacher"] = sums["kl_teacher"] / count
        found["opd_top_mass"] = sums["top_mass"] / count
        found["opd_teacher_top_mass"] = sums["teacher_top_mass"] / count
    return found | {
        "pg_loss": sums["pg_loss"],
        "kl_k3": sums["kl_k3"] / count,
        "mean_rollout_train_logprob_diff": sums["abs_diff"] / count,
        "rollout_train_logprob_diff_p99": min(quantile(abs_diffs, 0.99), max_diff),
        "max_rollout_train_logprob_diff": max_diff,
        "ratio_mean": sums["ratio"] / count,
        "clip_fraction": sums["clipped"] / count,
        "tis_clip_fraction": sums["tis_clipped"] / count,
        "rejected_fraction": sums["rejected"] / count,
        "clamped_fraction": sums["clamped"] / count,
        "ess": effective_sample_share(sums["is_weight"], sums["is_weight_squared"], count),
    }
