"""The folder of a run, and what makes it resumable.

    config.yaml      the resolved config; `--config config.yaml` runs it again
    run.json         config, versions, commit, machine, and each start of the run
    metrics.jsonl    one event a line: {"kind": "train", "update": 3, "time": ..., <metrics>}
    episodes/        rollout-000000.jsonl, which makes update 1; eval-000010.jsonl, after update 10
    checkpoints/     update-000010/, complete as soon as it is there
    snapshots/       update-000010/, of a run that plays against earlier states of its policy
    logs/            of processes
    summary.json     what the run came to
    curve.png        how the reward went

The checkpoint is the truth: when a run resumes, whatever the lost updates left behind is dropped, so that
no update, event or episode is ever there twice.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import yaml

from vime_agents.config.train import TrainConfig
from vime_agents.errors import CheckpointError, ConfigError
from vime_agents.storage.episodes import EpisodeWriter
from vime_agents.storage.json_lines import (
    JsonLinesWriter,
    drop_torn_line,
    keep_lines,
    read_json_lines,
    sync_path,
    write_atomically,
)
from vime_agents.storage.provenance import provenance
from vime_agents.storage.resume import check_same_config, take_lock

_UPDATE_FOLDER = re.compile(r"update-(\d{6,})")
_FIRST_NAMES = frozenset(
    {"run.lock", "checkpoints", "episodes", "logs", "run.json", ".run.json.tmp", ".config.yaml.tmp"}
)
"""What a start that was killed before it wrote config.yaml may have left behind."""
_EPISODE_FILE = re.compile(r"(rollout|eval)-(\d{6,})\.jsonl")


class RunDirectory:
    """One run's folder, owned by this process until `close`. Make it with `create_or_resume`."""

    def __init__(self, path: Path, lock: BinaryIO) -> None:
        self.path = path
        self._lock = lock
        self.checkpoints, self.episodes, self.logs = path / "checkpoints", path / "episodes", path / "logs"
        for folder in (self.checkpoints, self.episodes, self.logs):
            folder.mkdir(exist_ok=True)
        self.resume_update = 0
        """Update of the checkpoint to go on from; 0: a fresh start."""
        self._num_starts = 0
        self._metrics: JsonLinesWriter | None = None

    @classmethod
    def create_or_resume(
        cls,
        path: str | Path,
        config: TrainConfig,
        resume: Literal["auto", "never", "must"] | None = None,
    ) -> Self:
        """Make the folder, or take over one of the same config.

        Args:
            path: the folder.
            config: settings of this start.
            resume: None takes the config's own.

        Raises:
            ConfigError: another process holds it, it belongs to another config, it is not a run's folder,
                or `resume` does not allow what is there.
        """
        path, resume = Path(path), resume or config.resume
        _check_usable(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, take_lock(path / "run.lock", "--run-dir"))
        try:
            run._start(config, resume)
        except BaseException:
            run.close()
            raise
        return run

    # -------------------------------------------------------------------------------------- metrics

    def log(self, kind: str, update: int, metrics: Mapping[str, Any]) -> None:
        """Append one event; it is on the disk when this returns. Numbers that are not finite become null.

        Args:
            kind: train, eval, sync, ...
            update: updates done when it happened.
            metrics: JSON values or numpy scalars.
        """
        if self._metrics is None:
            self._metrics = JsonLinesWriter(self.metrics_path, sync_each=True)
        event = {"kind": kind, "update": update, "time": time.time(), **metrics}
        self._metrics.append(json.dumps({k: _json_value(v) for k, v in event.items()}, allow_nan=False))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events so far, of one kind if it is given."""
        if not self.metrics_path.exists():
            return []
        rows = (row for _, row in read_json_lines(self.metrics_path))
        return [row for row in rows if kind is None or row["kind"] == kind]

    @property
    def metrics_path(self) -> Path:
        """metrics.jsonl."""
        return self.path / "metrics.jsonl"

    @property
    def curve_path(self) -> Path:
        """curve.png."""
        return self.path / "curve.png"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        plain = {k: _json_value(v) for k, v in summary.items()}
        write_atomically(self.path / "summary.json", json.dumps(plain, indent=2) + "\n")

    # ------------------------------------------------------------------------------------- episodes

    def rollout_episodes(self, rollout: int) -> EpisodeWriter:
        """Where the episodes of a rollout go; rollout r (from 0) makes update r + 1."""
        return EpisodeWriter(self.episodes / f"rollout-{rollout:06d}.jsonl")

    def eval_episodes(self, update: int) -> EpisodeWriter:
        """Where the episodes of the evaluation after `update` updates go; starts afresh."""
        path = self.episodes / f"eval-{update:06d}.jsonl"
        path.unlink(missing_ok=True)
        return EpisodeWriter(path)

    # ---------------------------------------------------------------------------------- checkpoints

    def begin_checkpoint(self, update: int) -> Path:
        """An empty folder to write the checkpoint of `update` into; it counts once it is committed.

        Raises:
            CheckpointError: there is one of this update already.
        """
        final = self.checkpoints / f"update-{update:06d}"
        if final.exists():
            raise CheckpointError(f"{final}: this update has a checkpoint already")
        unfinished = self._unfinished(update)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        return unfinished

    def commit_checkpoint(self, update: int) -> None:
        """The folder is written: from here on the checkpoint counts, whatever ends the run."""
        unfinished = self._unfinished(update)
        for path in [*unfinished.rglob("*"), unfinished]:
            sync_path(path)
        unfinished.rename(self.checkpoints / f"update-{update:06d}")
        sync_path(self.checkpoints)

    def _unfinished(self, update: int) -> Path:
        # Not the name of an earlier start's: a writer that outlived it must not write into this one.
        return self.checkpoints / f".update-{update:06d}.start-{self._num_starts}.unfinished"

    def prune_checkpoints(self, keep: int) -> None:
        """Remove all but the newest `keep` checkpoints; 0 removes none."""
        for update in self.checkpointed()[:-keep] if keep else []:
            # Renamed first: a checkpoint that is half removed must not look whole.
            doomed = self._unfinished(update)
            self.checkpoint(update).rename(doomed)
            shutil.rmtree(doomed)

    def checkpoint(self, update: int) -> Path:
        """Folder of the checkpoint of `update`. Raises CheckpointError when there is none."""
        folder = self.checkpoints / f"update-{update:06d}"
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such checkpoint; there are {self.checkpointed()}")
        return folder

    def checkpointed(self) -> list[int]:
        """Updates that have a complete checkpoint, ascending."""
        names = (_UPDATE_FOLDER.fullmatch(p.name) for p in self.checkpoints.iterdir())
        return sorted(int(match[1]) for match in names if match)

    # ------------------------------------------------------------------------------------- lifetime

    def close(self) -> None:
        """Flush and give the folder free. Idempotent."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------ internals

    def _start(self, config: TrainConfig, resume: str) -> None:
        config_path = self.path / "config.yaml"
        if config_path.exists():
            if resume == "never":
                raise ConfigError(
                    f"--resume never: {self.path} holds a run; give another --run-dir, or --resume auto"
                )
            check_same_config(config_path, config, "--run-dir", "a run")
        done = self.checkpointed()
        if resume == "must" and not done:
            raise ConfigError(f"--resume must: {self.path} holds no checkpoint")
        self.resume_update = done[-1] if done else 0
        self._drop_after(self.resume_update)
        self._write_start(config)

    def _drop_after(self, update: int) -> None:
        """Remove what updates after `update` left behind."""
        drop_torn_line(self.metrics_path)
        keep_lines(self.metrics_path, lambda event: event["update"] <= update)
        for file in self.episodes.iterdir():
            match = _EPISODE_FILE.fullmatch(file.name)
            if match and int(match[2]) + (match[1] == "rollout") > update:
                file.unlink()
        for folder in self.checkpoints.glob(".update-*.unfinished"):
            shutil.rmtree(folder)

    def _write_start(self, config: TrainConfig) -> None:
        # Written as `auto`, so that the file can be run again whatever the first start was told.
        settings = config.to_dict() | {"resume": "auto"}
        run_path = self.path / "run.json"
        starts = json.loads(run_path.read_text())["starts"] if run_path.exists() else []
        start = {"started_at": time.time(), "resume_update": self.resume_update, **provenance()}
        record = {"config": settings, "seed": config.seed, "starts": [*starts, start]}
        self._num_starts = len(starts) + 1
        write_atomically(run_path, json.dumps(record, indent=2) + "\n")
        text = yaml.safe_dump(settings, sort_keys=False)
        write_atomically(self.path / "config.yaml", text)


def _check_usable(path: Path) -> None:
    """New, empty, a run's folder, or one whose first start was killed early."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--run-dir: {path} is a file")
    held = {p.name for p in path.iterdir()} if path.exists() else set()
    foreign = sorted(held - _FIRST_NAMES)
    if foreign and "config.yaml" not in held:
        raise ConfigError(f"--run-dir: {path} is not empty and not a run's folder: it holds {foreign[0]!r}")


def _json_value(value: Any) -> Any:
    """Plain JSON: numpy scalars become numbers, numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(k): _json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
