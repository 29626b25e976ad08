"""How far an evaluation is: a live bar on a terminal, a line every tenth elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vime_agents.episode import Episode
from vime_agents.evaluation.report import Tally
from vime_agents.policies.metered import Meter


class EvalProgress:
    """Counts episodes and shows them; what it prints is never needed by a program."""

    def __init__(
        self, total: int, stream: TextIO, opponents: Collection[str] = (), meter: Meter | None = None
    ) -> None:
        """`opponents`: agents whose rewards are not the evaluated policy's; `meter`: shown, if it counts."""
        self._meter = meter
        self.total, self.stream = total, stream
        self._tally = Tally(opponents)
        self._bar: Progress | None = None
        if stream.isatty():
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(file=stream), transient=True)
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, episode: Episode) -> None:
        """One more episode."""
        self._tally.add(episode)
        done, failed = self._tally.n, sum(self._tally.errors.values())
        text = f"reward {self._tally.mean:.3f}, {failed} failed{self._spent()}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
        elif done * 10 // self.total > (done - 1) * 10 // self.total:
            print(f"{done}/{self.total} episodes, {text}", file=self.stream, flush=True)

    def _spent(self) -> str:
        if self._meter is None or not self._meter.spent.total_tokens:
            return ""
        cost = "" if self._meter.cost is None else f", ${self._meter.cost:.4f}"
        return f", {self._meter.spent.total_tokens} tokens{cost}"
