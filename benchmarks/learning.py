"""Reward against optimizer steps of six methods, three seeds each, and of TRL's GRPO beside ours.

`make bench-learning BENCH_FLAGS="--updates N --seeds N --plot docs/learning.svg"`

The task is the one of tests/integration/megatron/call_observe_answer.py: call a tool, observe, answer,
learned from scratch by a transformer of 100 000 parameters. A rollout is 32 tasks x 8 episodes and makes two
optimizer steps of 16 tasks each, so that the second is off-policy and the losses' clips have something to do.
TRL's arm plays the same tasks with the same seeds and takes the same advantages; loss, backward pass,
clipping and AdamW are TRL's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import machine
from benchmarks.trainer_arms.learning_arm import METHODS
from benchmarks.trainer_arms.trl_venv import ROOT, arm_environment, trl_python

TRL = "GRPO of TRL"
SMOOTHED_OVER = 10
"""Rollouts of the mean that the plot shows."""

Curves = Mapping[str, Sequence[Sequence[float]]]
"""Method -> [seed][rollout] mean reward of the rollout's episodes."""


def main() -> None:
    """Run every method, print what each came to, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=[*METHODS, TRL])
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    curves = run(options.methods, options.seeds, options.updates)
    print(f"{'reward':<22}{'at start':>10}{'half way':>10}{'at end':>10}{'lowest seed':>13}{'highest':>10}")
    for name, rows in curves.items():
        table = smoothed(rows)
        ends = table[:, -1]
        print(
            f"{name:<22}{table[:, 0].mean():>10.3f}{table[:, table.shape[1] // 2].mean():>10.3f}"
            f"{ends.mean():>10.3f}{ends.min():>13.3f}{ends.max():>10.3f}"
        )
    results = {}
    if {"GRPO", TRL} <= curves.keys():
        results = agreement(curves["GRPO"], curves[TRL])
        print("GRPO, ours and TRL's:", *(f"{k} {v:.3f}" for k, v in results.items()), sep="  ")
    if options.plot is not None:
        plot(curves, options.plot)
    print(json.dumps({"benchmark": "learning", **results, "curves": curves, "machine": machine()}))


def run(methods: Sequence[str], num_seeds: int, num_updates: int) -> dict[str, list[list[float]]]:
    """Ours in one process after another, TRL's beside them in its own environment."""
    ours = [m for m in methods if m != TRL]
    jobs = {sys.executable: ours} | ({str(trl_python()): [TRL]} if TRL in methods else {})
    processes = [
        subprocess.Popen(
            [python, "-m", "benchmarks.trainer_arms.learning_arm", str(num_seeds), str(num_updates), *names],
            cwd=ROOT,
            env=arm_environment() | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for python, names in jobs.items()
        if names
    ]
    curves: dict[str, list[list[float]]] = {name: [] for name in methods}
    for process in processes:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"an arm ended with exit code {process.returncode}")
        for line in out.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                curves[found["method"]].append([round(r, 4) for r in found["rewards"]])
    return curves


def smoothed(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """[seeds, rollouts - SMOOTHED_OVER + 1] running means."""
    window = min(SMOOTHED_OVER, len(rows[0]))
    kernel = np.full(window, 1 / window)
    return np.stack([np.convolve(row, kernel, mode="valid") for row in rows])


def agreement(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, float]:
    """How far apart two sets of curves are, and how often the mean of one is within the other's seeds.

    The band of a method at a rollout is from its lowest seed to its highest, and 0.02 more on both sides.
    """
    mine, other = smoothed(ours), smoothed(theirs)
    middle = other.mean(0)
    inside = (middle >= mine.min(0) - 0.02) & (middle <= mine.max(0) + 0.02)
    return {
        "mean difference": float(np.abs(mine.mean(0) - middle).mean()),
        "difference at the end": float(abs(mine[:, -1].mean() - middle[-1])),
        "share of rollouts within the band": float(inside.mean()),
    }


def plot(curves: Curves, path: Path) -> None:
    """Mean over seeds, and a band from the lowest to the highest."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "learning"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, rows in curves.items():
        table = smoothed(rows)
        steps = 2 * (np.arange(table.shape[1]) + SMOOTHED_OVER)
        style = {"color": "black", "linestyle": "--"} if name == TRL else {}
        (line,) = axes.plot(steps, table.mean(0), label=name, linewidth=1.5, **style)
        axes.fill_between(steps, table.min(0), table.max(0), color=line.get_color(), alpha=0.12, linewidth=0)
    axes.set(xlabel="optimizer steps", ylabel="reward", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
