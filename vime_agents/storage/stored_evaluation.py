"""The folder of an evaluation, as those read it who come after; nothing here changes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from vime_agents.episode import Episode
from vime_agents.errors import ConfigError
from vime_agents.storage.episodes import read_episodes
from vime_agents.storage.eval_directory import CONFIG_FILE, EPISODES_FILE, REPORT_FILE, TASKS_FILE
from vime_agents.storage.stored_tasks import StoredTask, read_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """What `vime-agents eval --out` left in a folder."""

    path: Path
    settings: Mapping[str, Any]
    """The config, by YAML key, as the release that wrote it knew it."""
    tasks: Mapping[str, StoredTask] | None
    """By id; None: the folder is of a release that did not store them."""
    report: Mapping[str, Any] | None
    """None: the evaluation is not complete."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read all but the episodes.

        Raises:
            ConfigError: no such folder, or not one of an evaluation.
            DatasetError: a line of its tasks is none.
        """
        path = Path(path)
        for name in (CONFIG_FILE, EPISODES_FILE):
            if not (path / name).is_file():
                raise ConfigError(
                    f"{path} is no folder of an evaluation: it has no {name}. Give one that "
                    "`vime-agents eval --out FOLDER` made"
                )
        try:
            settings = yaml.safe_load((path / CONFIG_FILE).read_text(encoding="utf-8"))
            report_file = path / REPORT_FILE
            report = json.loads(report_file.read_text(encoding="utf-8")) if report_file.exists() else None
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{path}: its config or its report cannot be read: {error}") from error
        if not isinstance(settings, dict) or not isinstance(settings.get("env"), str):
            raise ConfigError(f"{path / CONFIG_FILE} is not the config of an evaluation: it names no env")
        tasks_file = path / TASKS_FILE
        tasks = read_tasks(tasks_file) if tasks_file.exists() else None
        return cls(path=path, settings=settings, tasks=tasks, report=report)

    @property
    def env_id(self) -> str:
        """Of the environment, as it was given."""
        return self.settings["env"]

    @property
    def played_env_id(self) -> str:
        """Of the environment that was played: another one, where the episodes were scored again by it."""
        return ((self.report or {}).get("rescored_from") or {}).get("env", self.env_id)

    def episodes(self) -> Iterator[Episode]:
        """In the order in which they finished, one at a time. Raises DatasetError: a line that is none."""
        return read_episodes(self.path / EPISODES_FILE)
