"""The folder of an evaluation, and what makes it resumable.

config.yaml      the resolved config; `--config config.yaml` runs it again
tasks.jsonl      what was played: a line for each task, with its inputs
episodes.jsonl   one line for each episode, as they finish
usage.json       what the model's calls took so far
report.json      what it came to; complete once it is there
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vime_agents.config.evaluation import EvalConfig
from vime_agents.episode import Episode
from vime_agents.errors import ConfigError
from vime_agents.policies.metered import Spent
from vime_agents.storage.episodes import EpisodeWriter, read_episodes
from vime_agents.storage.json_lines import drop_torn_line, keep_lines, write_atomically
from vime_agents.storage.provenance import provenance
from vime_agents.storage.resume import check_same_config, take_lock
from vime_agents.storage.stored_tasks import StoredTask, changed_tasks, read_tasks, task_line
from vime_agents.task import Task

CONFIG_FILE, TASKS_FILE = "config.yaml", "tasks.jsonl"
EPISODES_FILE, USAGE_FILE, REPORT_FILE = "episodes.jsonl", "usage.json", "report.json"


class EvalDirectory:
    """One evaluation's folder, owned by this process until `close`."""

    def __init__(self, path: Path, config: EvalConfig, *, group_size: int = 1) -> None:
        """Make the folder, or go on in one of the same config.

        Args:
            path: the folder.
            config: of this start.
            group_size: episodes of a task that are compared with each other; a group that is not whole is
                played again.

        Raises:
            ConfigError: it holds a complete evaluation, one of another config, or another process has it.
            DatasetError: a line of its episodes is none.
        """
        self.path, self._config = path, config
        _check_incomplete(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make the folder {path}: {error.strerror}") from error
        self._lock = take_lock(path / "eval.lock", "--out")
        try:
            self.finished: list[Episode] = self._resume(group_size)
            """Those of earlier starts."""
            self._writer = EpisodeWriter(self._episodes)
        except BaseException:
            self._lock.close()
            raise

    @classmethod
    def finished_in(
        cls, path: Path, config: EvalConfig, tasks: Sequence[Task], *, group_size: int = 1
    ) -> list[Episode]:
        """The episodes that a start on these tasks would not play again. Only reads, also what is in use.

        Raises:
            ConfigError, DatasetError: what a start would raise.
        """
        _check_incomplete(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"--out: {path} is no folder")
        if not _is_begun(path, config) or not (path / EPISODES_FILE).exists():
            return []
        _check_tasks(path, tasks)
        return _whole_groups(list(read_episodes(path / EPISODES_FILE)), group_size)

    def keep_tasks(self, tasks: Sequence[Task]) -> None:
        """Write down what is played, before it is; or see that it is what an earlier start played.

        A start of an older release wrote nothing down: what it played stays unknown.

        Raises:
            ConfigError: a task of the same id is another one now.
        """
        file = self.path / TASKS_FILE
        if not file.exists():
            if not self.finished:
                write_atomically(file, "".join(task_line(task) for task in tasks))
            return
        _check_tasks(self.path, tasks)

    def append(self, episode: Episode) -> None:
        """One more is finished."""
        self._writer.append(episode)

    def keep_usage(self, spent: Spent) -> None:
        """Write down what was spent, if anything was, so that the report and a budget count across starts."""
        if spent != Spent():
            write_atomically(self.path / USAGE_FILE, json.dumps(spent.to_dict()) + "\n")

    def spent(self) -> Spent:
        """What earlier starts wrote down. Raises ConfigError: it cannot be read."""
        return self.spent_in(self.path)

    @staticmethod
    def spent_in(path: Path) -> Spent:
        """What starts in this folder wrote down. Raises ConfigError: it cannot be read."""
        file = path / USAGE_FILE
        if not file.exists():
            return Spent()
        try:
            return Spent.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"--out: {file} does not say what was spent ({error!r}); without the file, "
                "counting begins anew"
            ) from error

    def write_report(self, report: Mapping[str, Any]) -> None:
        """The evaluation is complete."""
        result = {**report, "config": self._config.to_dict(), **provenance()}
        write_atomically(self.path / REPORT_FILE, json.dumps(result, indent=2) + "\n")

    def close(self) -> None:
        """Free the folder. Idempotent."""
        self._writer.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _episodes(self) -> Path:
        return self.path / EPISODES_FILE

    def _resume(self, group_size: int) -> list[Episode]:
        config_file = self.path / CONFIG_FILE
        begun = _is_begun(self.path, self._config)
        write_atomically(config_file, self._config.to_yaml())
        if not begun or not self._episodes.exists():
            return []
        drop_torn_line(self._episodes)
        episodes = list(read_episodes(self._episodes))
        whole = _whole_groups(episodes, group_size)
        if len(whole) < len(episodes):
            kept = {episode.group_id for episode in whole}
            keep_lines(self._episodes, lambda row: row["group_id"] in kept)
        return whole


def _check_incomplete(path: Path) -> None:
    """Raises ConfigError: it holds a complete evaluation."""
    if (path / REPORT_FILE).exists():
        raise ConfigError(f"--out: {path} holds a complete evaluation (report.json); give another folder")


def _is_begun(path: Path, config: EvalConfig) -> bool:
    """Whether there is something to go on with. Raises ConfigError: of another config, or something else."""
    if (path / CONFIG_FILE).exists():
        check_same_config(path / CONFIG_FILE, config, "--out", "an evaluation")
        return True
    if (path / EPISODES_FILE).exists():
        raise ConfigError(f"--out: {path} holds episodes of something else; give another folder")
    return False


def _check_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Raises ConfigError: a task of the same id was another one when it was played."""
    file = path / TASKS_FILE
    if not file.exists():  # of an older release
        return
    now = {task.id: StoredTask.of(task) for task in tasks}
    if changed := changed_tasks(read_tasks(file), now):
        raise ConfigError(
            f"--out: {path} holds episodes of other tasks than the environment has now: "
            f"{'; '.join(changed)}. Give another folder"
        )


def _whole_groups(episodes: Sequence[Episode], group_size: int) -> list[Episode]:
    sizes = Counter(episode.group_id for episode in episodes)
    return [episode for episode in episodes if sizes[episode.group_id] >= group_size]
