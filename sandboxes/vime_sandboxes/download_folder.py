"""Where a download lies until it is whole: a hidden folder beside its target, or in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from vime_agents.errors import SandboxError
from vime_sandboxes.tree_write import merge

PREFIX = ".vime-download-"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DownloadFolder:
    """A folder that is locked while its owner lives; what a killed owner left is removed by the next one."""

    def __init__(self, target: Path) -> None:
        self._target = target.resolve() if target.is_symlink() and target.is_dir() else target
        self._path = Path()
        self.fd = -1
        self.existing: int | None = None
        """Open on the target, when that is a folder already."""

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls, target: Path, in_thread: Callable[..., Awaitable[Any]]
    ) -> AsyncIterator[DownloadFolder]:
        """One that is removed at the end. Raises SandboxError when `target` cannot be written."""
        folder = cls(target)
        try:
            await in_thread(folder.make)
            yield folder
        finally:
            await in_thread(folder.remove)

    def make(self) -> None:
        """Make it. Raises SandboxError."""
        try:
            existing = self._target.is_dir()
            place = self._target if existing else self._target.parent
            place.mkdir(parents=True, exist_ok=True)
            _remove_orphans(place)
            while self.fd < 0 or not os.fstat(self.fd).st_nlink:  # taken for an orphan before it was locked
                self._close()
                self._path = place / f"{PREFIX}{secrets.token_hex(8)}"
                self._path.mkdir(mode=0o700)
                with contextlib.suppress(FileNotFoundError):
                    self.fd = os.open(self._path, _OPEN_FOLDER)
                    fcntl.flock(self.fd, fcntl.LOCK_EX)
            if existing:
                self.existing = os.open(place, _OPEN_FOLDER)
        except OSError as error:
            raise self._failed(error) from error

    def publish(self, single: bytes | None) -> None:
        """Put what is there in place; `single`: it is this one file. Raises SandboxError when it cannot."""
        try:
            if single is not None:
                os.rename(single, self._target, src_dir_fd=self.fd)
            elif self.existing is not None:
                merge(self.fd, self.existing)
            else:
                os.rename(self._path, self._target)
        except SandboxError:
            raise
        except OSError as error:
            raise self._failed(error) from error

    def remove(self) -> None:
        """Remove what has not been published."""
        if self._path.name:
            shutil.rmtree(self._path, ignore_errors=True)
        self._close()
        if self.existing is not None:
            os.close(self.existing)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _failed(self, error: OSError) -> SandboxError:
        return SandboxError(f"cannot download to {str(self._target)!r}: {error}")


def _remove_orphans(place: Path) -> None:
    with os.scandir(place) as entries:
        found = [e.path for e in entries if e.name.startswith(PREFIX) and e.is_dir(follow_symlinks=False)]
    for path in found:
        try:
            fd = os.open(path, _OPEN_FOLDER)
        except OSError:  # another download has just finished
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue  # its owner lives
        finally:
            os.close(fd)
