"""The learning curve of a run as a picture."""

from __future__ import annotations

import matplotlib

from vime_agents.storage.run_directory import RunDirectory

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def plot_curve(run: RunDirectory) -> None:
    """Write curve.png: training reward by update, or loss without rollouts, and held-out rewards."""
    train, evals = run.events("train"), run.events("eval")
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    rewarded = [e for e in train if "reward_mean" in e]
    if train and not rewarded:
        axes.plot([e["update"] for e in train], [e["loss"] for e in train], marker=".", label="training loss")
    if rewarded:
        updates = [e["update"] for e in rewarded]
        axes.plot(updates, [e["reward_mean"] for e in rewarded], marker=".", label="training reward")
    scored = [e for e in evals if e["mean"] is not None]
    if scored:
        low = [e["mean"] - (e["ci_low"] if e["ci_low"] is not None else e["mean"]) for e in scored]
        high = [(e["ci_high"] if e["ci_high"] is not None else e["mean"]) - e["mean"] for e in scored]
        axes.errorbar(
            [e["update"] for e in scored],
            [e["mean"] for e in scored],
            yerr=[low, high],
            fmt="s",
            capsize=4,
            label="held-out reward, 95 % interval",
        )
    axes.set_xlabel("updates")
    axes.set_ylabel("mean reward" if rewarded or not train else "loss, mean reward")
    axes.grid(alpha=0.3)
    if train or scored:
        axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(run.curve_path)
    plt.close(figure)
