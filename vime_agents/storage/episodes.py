"""Episodes <-> JSON Lines files: one line for each, appended as they finish; nothing is ever rewritten.

Readable with one line of pandas, duckdb or `datasets`. A line that a crash tore is dropped when the file is
opened again, and skipped by readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from vime_agents.episode import Episode, episode_from_json, episode_to_json
from vime_agents.errors import DatasetError, RecordError
from vime_agents.storage.json_lines import JsonLinesWriter, read_json_lines


class EpisodeWriter:
    """Appends episodes to one file.

    Guarantees: after `append` returns, the episode survives the death of this process; after `close`, that
    of the machine.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = JsonLinesWriter(path, sync_each=False)
        self.path = self._lines.path

    def append(self, episode: Episode) -> None:
        """Write one episode. Raises TypeError when its `info` is not JSON."""
        self._lines.append(json.dumps(episode_to_json(episode), allow_nan=False, separators=(",", ":")))

    def close(self) -> None:
        """Flush to the disk. Idempotent."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_episodes(path: str | Path) -> Iterator[Episode]:
    """The episodes of one file, in the order in which they were written.

    Raises:
        DatasetError: no such file, or a line that is no episode; names file and line.
    """
    for number, row in read_json_lines(path):
        try:
            yield episode_from_json(row)
        except RecordError as error:
            raise DatasetError(f"{path}:{number}: {error}") from error
