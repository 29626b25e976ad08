"""A store's episodes -> one file, in one step: it is there when it is whole, or not at all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

import vime_agents
from vime_agents.errors import ConfigError
from vime_agents.storage.exports.atif import atif_documents
from vime_agents.storage.exports.json_text import json_line
from vime_agents.storage.exports.parquet import write_parquet
from vime_agents.storage.exports.rows import episode_row
from vime_agents.storage.stored_episodes import StoredEpisode

ExportFormat = Literal["jsonl", "parquet", "atif"]
FORMATS: tuple[ExportFormat, ...] = ("jsonl", "parquet", "atif")
STDOUT = "-"


def export_episodes(
    episodes: Iterable[StoredEpisode],
    out: str | Path,
    form: ExportFormat,
    *,
    tokens: bool = False,
    overwrite: bool = False,
) -> int:
    """Write the episodes, one at a time in memory (Parquet: a row group); how many there were.

    Args:
        episodes: what to write.
        out: the file, or `-` for the standard output.
        form: jsonl and parquet: a row for each episode, as `episode_row` says; atif: a line of JSON for each
            agent of each episode, itself an ATIF document.
        tokens: token ids and log-probs as well.
        overwrite: replace the file if it is there.

    Raises:
        ConfigError: the file is there, or cannot be made.
        DatasetError: a line of the store is no episode.
        MissingDependencyError: Parquet without pyarrow.
    """
    count = 0

    def counted() -> Iterator[StoredEpisode]:
        nonlocal count
        for count, stored in enumerate(episodes, start=1):  # noqa: B007 (the caller's)
            yield stored

    if str(out) == STDOUT:
        if form == "parquet":
            raise ConfigError("--out -: Parquet needs a file")
        _write_lines(counted(), sys.stdout, form, tokens=tokens)
        return count
    with _new_file(Path(out), overwrite=overwrite) as part:
        if form == "parquet":
            write_parquet((episode_row(s, tokens=tokens) for s in counted()), part, tokens=tokens)
        else:
            with part.open("w", encoding="ascii") as file:
                _write_lines(counted(), file, form, tokens=tokens)
    return count


def _write_lines(
    episodes: Iterable[StoredEpisode], file: TextIO, form: ExportFormat, *, tokens: bool
) -> None:
    for stored in episodes:
        for value in _values(stored, form, tokens=tokens):
            file.write(json_line(value) + "\n")


def _values(stored: StoredEpisode, form: ExportFormat, *, tokens: bool) -> Iterable[dict[str, Any]]:
    if form == "atif":
        return atif_documents(stored, version=vime_agents.__version__, tokens=tokens)
    return [episode_row(stored, tokens=tokens)]


@contextlib.contextmanager
def _new_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when all is written, and is removed otherwise."""
    if path.is_dir():
        raise ConfigError(f"--out: {path} is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise ConfigError(f"--out: {path} is there already; give another file, or --overwrite")
    part = path.with_name(f".{path.name}.part")
    try:
        part.touch()
    except OSError as error:
        raise ConfigError(f"--out: cannot write {path}: {error.strerror}") from error
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
