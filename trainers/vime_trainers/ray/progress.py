"""What a person sees of a run: a live line on a terminal, a line for each update everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.status import Status
from rich.table import Table

from vime_agents.config.train import TrainConfig
from vime_agents.episode import Episode
from vime_agents.evaluation.report import EvalReport
from vime_agents.storage.run_directory import RunDirectory


class TrainProgress:
    """Prints; nothing that a program needs."""

    def __init__(self, config: TrainConfig, run: RunDirectory) -> None:
        self.config, self.run = config, run
        self.console = Console()
        self._status: Status | None = None
        if self.console.is_terminal:
            self._status = self.console.status("")

    def __enter__(self) -> Self:
        self.say(f"run directory: {self.run.path}")
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit)):
            self.say("stopped; the same command goes on from the last checkpoint")

    def say(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def episode(self, what: str, episodes: Sequence[Episode], total: int) -> None:
        """One more episode finished."""
        if self._status is None:
            return
        rewards = [e.reward for e in episodes if e.reward is not None]
        mean = f", reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
        failed = sum(e.outcome.kind == "failed" for e in episodes)
        trouble = f", {failed} failed" if failed else ""
        self._status.update(f"{what}: {len(episodes)}/{total} episodes{mean}{trouble}")

    def updated(self, update: int, metrics: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        """One more update done."""
        times = " ".join(f"{name} {value:.1f}" for name, value in seconds.items())
        parts = [
            f"update {update}/{self.config.num_rollout}",
            *_learned_from(metrics),
        ]
        difference = metrics.get("mean_rollout_train_logprob_diff")
        if difference is not None:
            parts.append(f"|dlogp| {difference:.1e}")
        if metrics.get("grad_norm") is not None:
            parts.append(f"grad {metrics['grad_norm']:.2f}")
        self.say("  ".join(parts) + f"  [{times} s]")
        if self._status is not None:
            self._status.update("")

    def evaluated(self, update: int, report: EvalReport) -> None:
        """An evaluation is done."""
        failed = sum(report.errors.values())
        trouble = f", {failed} failed" if failed else ""
        self.say(
            f"held-out reward after {update} updates: {report.mean:.3f} "
            f"[{report.ci_low:.3f}, {report.ci_high:.3f}], n = {report.n_scored}{trouble}"
        )

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The table at the end."""
        if self._status is not None:
            self._status.stop()
        self.console.print(_table(summary))
        for label, path in (
            ("curve", self.run.curve_path),
            ("summary", Path(self.run.path) / "summary.json"),
            ("run directory", Path(self.run.path)),
        ):
            self.say(f"{label}: {path}")


def _learned_from(metrics: Mapping[str, Any]) -> list[str]:
    if "reward_mean" not in metrics:
        return [f"loss {metrics.get('loss', float('nan')):.4f}", f"{metrics['tokens_trained']:.0f} tokens"]
    return [
        f"reward {metrics['reward_mean']:.3f}",
        *(f"{k.removeprefix('reward/')} {v:.2f}" for k, v in _components(metrics).items()),
        f"trained {metrics['tokens_trained']:.0f} of {metrics['tokens_sampled']:.0f} tokens",
    ]


def _components(metrics: Mapping[str, Any]) -> dict[str, float]:
    parts = {k: v for k, v in metrics.items() if k.startswith("reward/")}
    return parts if len(parts) > 1 else {}


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table(title="Result", show_header=False)
    for label, key in (("held-out before", "eval_before"), ("held-out after", "eval_after")):
        evaluation = summary[key]
        if evaluation is not None and evaluation["mean"] is not None:
            low, high = evaluation["ci_low"], evaluation["ci_high"]
            interval = f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
            table.add_row(label, f"{evaluation['mean']:.3f}{interval}  n = {evaluation['n_scored']}")
    for key in ("updates", "weight_version", "episodes", "tokens_sampled", "tokens_trained"):
        table.add_row(key.replace("_", " "), f"{summary[key]:,}")
    for label, key in (
        ("largest probe difference", "max_probe_logprob_diff"),
        ("mean |rollout - trainer| log-prob", "mean_rollout_train_logprob_diff"),
    ):
        if summary[key] is not None:
            table.add_row(label, f"{summary[key]:.2e} nats")
    seconds = summary["seconds"]
    table.add_row("seconds", "  ".join(f"{k} {v:.0f}" for k, v in seconds.items()))
    return table
