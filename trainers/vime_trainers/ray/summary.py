"""What a run came to, out of its metrics: the same whether or not it was interrupted on the way."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from vime_agents.storage.run_directory import RunDirectory

_EVAL_KEYS = ("mean", "ci_low", "ci_high", "n", "n_scored", "ci_method", "errors")


def summarise(run: RunDirectory) -> dict[str, Any]:
    """The content of summary.json."""
    train, evals = run.events("train"), run.events("eval")
    every = [*run.events("start"), *train]
    probes = [e["max_probe_logprob_diff"] for e in every if e.get("max_probe_logprob_diff") is not None]
    mismatch = [
        (e["mean_rollout_train_logprob_diff"], e["num_trainable_tokens"])
        for e in train
        if e.get("mean_rollout_train_logprob_diff") is not None
    ]
    return {
        "eval_before": _evaluation(evals, 0),
        "eval_after": _evaluation(evals, evals[-1]["update"]) if evals else None,
        "updates": train[-1]["update"] if train else 0,
        "weight_version": train[-1]["weight_version"] if train else 0,
        "max_probe_logprob_diff": max(probes, default=None),
        "mean_rollout_train_logprob_diff": _weighted_mean(mismatch),
        "tokens_sampled": int(sum(e.get("tokens_sampled", 0) for e in train)),
        "tokens_trained": int(sum(e["tokens_trained"] for e in train)),
        "tokens_lost_to_drift": int(sum(e.get("tokens_lost_to_drift", 0) for e in train)),
        "episodes": int(sum(e.get("episodes", 0) for e in train)),
        "seconds": seconds_by_phase([*every, *evals, *run.events("checkpoint"), *run.events("save_hf")]),
        "run_dir": str(run.path),
    }


def seconds_by_phase(events: list[dict[str, Any]]) -> dict[str, float]:
    """Total seconds of each phase."""
    total: dict[str, float] = defaultdict(float)
    for event in events:
        for name, value in event.items():
            if name.startswith("seconds/"):
                total[name.removeprefix("seconds/")] += value
    return {name: round(value, 3) for name, value in total.items()}


def _evaluation(evals: list[dict[str, Any]], update: int) -> dict[str, Any] | None:
    """The evaluation after `update` updates, or None."""
    for event in evals:
        if event["update"] == update:
            parts = {k: v for k, v in event.items() if k.startswith("reward/")}
            return {"update": update, **{k: event[k] for k in _EVAL_KEYS}, **parts}
    return None


def _weighted_mean(pairs: list[tuple[float, float]]) -> float | None:
    weights = [w for _, w in pairs]
    return float(np.average([v for v, _ in pairs], weights=weights)) if sum(weights) else None
