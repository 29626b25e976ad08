"""A run's checkpoints: written while the run waits, or (`--async-save`) while it goes on; one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from vime_agents.errors import TrainerError
from vime_agents.storage.run_directory import RunDirectory
from vime_trainers.ray.run_state import Stateful, save_run_state

_POLL_S = 0.5


class Saver(Protocol):
    """The part of a trainer that is needed here; the last two in the background alone."""

    def save(self, folder: Path) -> None:
        """Write a checkpoint into the empty folder."""
        ...

    def begin_save(self, folder: Path) -> None:
        """Begin to."""
        ...

    def finish_saves(self, *, wait: bool) -> bool:
        """Whether the save that was begun is complete; with `wait`, once it is."""
        ...


class Checkpoints:
    """An async context manager: however its block ends, a checkpoint that was begun is waited for.

    It counts once everything of it is written.
    """

    def __init__(self, run: RunDirectory, trainer: Saver, *, background: bool, keep: int) -> None:
        self.run, self.trainer, self.background, self.keep = run, trainer, background, keep
        self._writing: asyncio.Task[None] | None = None

    async def save(self, update: int, parts: Mapping[str, Stateful]) -> None:
        """Write the checkpoint of `update`, with the state of `parts` as it is now, or begin to.

        Raises:
            CheckpointError: it cannot be written, or the one before could not be.
        """
        asked = time.monotonic()
        await self._written()
        begun = asyncio.Event()
        # A task of its own: what stops the run meanwhile does not stop a checkpoint half way.
        self._writing = asyncio.create_task(self._write(update, parts, asked, begun))
        if self.background:
            beginning = asyncio.create_task(begun.wait())
            await asyncio.wait((beginning, self._writing), return_when=asyncio.FIRST_COMPLETED)
            beginning.cancel()
            self.check()
        else:
            await self._written()

    def check(self) -> None:
        """Raises CheckpointError when the checkpoint that was begun could not be written."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._written()
        except TrainerError as lost:
            if error is None or isinstance(error, asyncio.CancelledError):
                raise
            if lost is not error:
                error.add_note(f"the checkpoint that was being written is lost: {lost}")

    async def _written(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(
        self, update: int, parts: Mapping[str, Stateful], asked: float, begun: asyncio.Event
    ) -> None:
        folder = self.run.begin_checkpoint(update)
        await asyncio.to_thread(self.trainer.begin_save if self.background else self.trainer.save, folder)
        save_run_state(folder, parts)
        held_s = time.monotonic() - asked
        begun.set()
        if self.background:
            await self._until_written()
        await asyncio.to_thread(self.run.commit_checkpoint, update)
        await asyncio.to_thread(self.run.prune_checkpoints, self.keep)
        written_s = time.monotonic() - asked
        seconds = {
            "seconds/checkpoint": held_s if self.background else written_s,
            "written_after_s": written_s,
        }
        self.run.log("checkpoint", update, seconds)

    async def _until_written(self) -> None:
        # Asked in between: to wait would keep the ranks from their next update.
        while True:
            if await asyncio.to_thread(self.trainer.finish_saves, wait=False):
                return
            await asyncio.sleep(_POLL_S)
