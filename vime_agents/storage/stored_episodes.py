"""A folder -> its episodes, in the order in which they were played; one at a time in memory.

An evaluation's folder has one file of them, a run's one for each rollout and evaluation. Both can be read
while they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vime_agents.episode import Episode
from vime_agents.errors import ConfigError, did_you_mean, nearest
from vime_agents.storage.episodes import read_episodes
from vime_agents.storage.eval_directory import EPISODES_FILE

_OF_A_RUN = re.compile(r"(rollout|eval)-(\d{6,})")
_MOST_COMPARED = 10_000
"""Ids in which a near one is looked for: the comparison is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """One episode and where it stands."""

    number: int
    """Its place in the folder, from 1."""
    source: str
    """Name of its file without the suffix: `episodes`, `rollout-000003`, `eval-000010`."""
    episode: Episode


def episode_files(folder: str | Path) -> list[Path]:
    """The files that hold the episodes of an evaluation, of a run, or the one file that is given.

    Those of a run stand in the order of its updates: eval-000000, rollout-000000, ..., eval-000010.

    Raises:
        ConfigError: there are none; says what was looked for, and where there are some.
    """
    folder = Path(folder)
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder{_neighbour(folder)}")
    if (folder / EPISODES_FILE).is_file():
        return [folder / EPISODES_FILE]
    for place in (folder / "episodes", folder):
        if found := [f for f in place.glob("*.jsonl") if _OF_A_RUN.fullmatch(f.stem)]:
            return sorted(found, key=_when)
    inside = sorted({f.parent.name for name in (EPISODES_FILE, "episodes") for f in folder.glob(f"*/{name}")})
    there = f"; give one of those inside it: {', '.join(inside[:5])}" if inside else ""
    raise ConfigError(
        f"{folder}: no episodes here: neither {EPISODES_FILE}, as `vime-agents eval --out` writes it, nor "
        f"episodes/rollout-*.jsonl of a training run{there}"
    )


def stored_episodes(files: Sequence[Path]) -> Iterator[StoredEpisode]:
    """The episodes of these files, numbered through. Raises DatasetError: a line that is none."""
    number = 0
    for file in files:
        for episode in read_episodes(file):
            number += 1
            yield StoredEpisode(number=number, source=file.stem, episode=episode)


def find_episode(files: Sequence[Path], name: str) -> StoredEpisode:
    """The episode of a name: its id, SOURCE/ID where several files have one of that id, or its number.

    Raises:
        ConfigError: there is none, or more than one; says which come close.
    """
    by_number: StoredEpisode | None = None
    by_id: list[StoredEpisode] = []
    known: list[str] = []
    for stored in stored_episodes(files):
        full_name = f"{stored.source}/{stored.episode.id}"
        if full_name == name:
            return stored
        if stored.episode.id == name:
            by_id.append(stored)
        elif str(stored.number) == name:
            by_number = stored
        known.append(stored.episode.id)
    if len(by_id) > 1:
        names = ", ".join(f"{s.source}/{name}" for s in by_id[:5])
        raise ConfigError(f"{len(by_id)} episodes have the id {name!r}; say which one: {names}")
    if by_id:
        return by_id[0]
    if by_number is None:
        hint = did_you_mean(name, known[:_MOST_COMPARED])
        raise ConfigError(f"no episode {name!r} among {len(known)}: give an id or a number from 1.{hint}")
    return by_number


def _when(file: Path) -> tuple[int, int]:
    """(updates done when it was written, evaluations after rollouts)."""
    match = _OF_A_RUN.fullmatch(file.stem)
    assert match is not None
    is_eval = match[1] == "eval"
    return int(match[2]) + (not is_eval), int(is_eval)


def _neighbour(folder: Path) -> str:
    if not folder.parent.is_dir():
        return ""
    close = nearest(folder.name, [p.name for p in folder.parent.iterdir() if p.is_dir()])
    return f". Did you mean {folder.parent / close}?" if close else ""
