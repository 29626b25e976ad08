"""Which code is the author's, so that a finding can name a line of it."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_NOT_THE_AUTHORS = ("vime_agents", "gymnasium", "builtins", "typing", "abc")


class AuthorCode:
    """The modules that an environment's class and its bases are written in, whole packages included."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.modules = [
            module
            for module in dict.fromkeys(base.__module__ for base in cls.__mro__)
            if module.partition(".")[0] not in _NOT_THE_AUTHORS
        ]
        self._files: set[str] = set()
        self._folders: set[str] = set()
        for name in self.modules:
            for part in (name, name.partition(".")[0]):
                file = getattr(sys.modules.get(part), "__file__", None)
                if file and Path(file).name == "__init__.py":
                    self._folders.add(str(Path(file).parent) + "/")
                elif file:
                    self._files.add(file)

    def owns(self, code: CodeType) -> bool:
        """Whether the author wrote it."""
        return self._is_own_file(code.co_filename)

    def _is_own_file(self, file: str) -> bool:
        return file in self._files or any(file.startswith(folder) for folder in self._folders)

    def line_in(self, file: str, line: int) -> str | None:
        """A line of a file, if the author wrote it."""
        return f"{_shown(file)}:{line}" if self._is_own_file(file) else None

    @staticmethod
    def place(code: CodeType, line: int) -> str:
        """A line as findings show it."""
        return f"{_shown(code.co_filename)}:{line} in {code.co_name}"

    def line_of(self, error: BaseException) -> str | None:
        """The author's innermost line that an exception, or what caused it, went through."""
        chain: list[BaseException] = []
        seen: BaseException | None = error
        while seen is not None and seen not in chain:
            chain.append(seen)
            seen = seen.__cause__ or seen.__context__
        for link in reversed(chain):
            steps = [step for step in traceback.walk_tb(link.__traceback__) if self.owns(step[0].f_code)]
            if steps:
                frame, line = steps[-1]
                return self.place(frame.f_code, line)
        return None

    def line_of_frame(self, frame: FrameType | None) -> str | None:
        """The author's innermost line on a thread's stack."""
        while frame is not None:
            if self.owns(frame.f_code):
                return self.place(frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None

    def lines_in_threads(self) -> list[str]:
        """Where hooks and tools that run off the event loop are now."""
        frames = sys._current_frames()
        threads = [t for t in threading.enumerate() if t.name.startswith(("vime-hook", "asyncio_"))]
        lines = (self.line_of_frame(frames.get(t.ident or 0)) for t in threads)
        return [line for line in lines if line is not None]

    def line_now(self, tasks: Iterable[asyncio.Task[Any]]) -> str | None:
        """Where a call of the env is: what its tasks await, or what runs for it in a thread."""
        for task in tasks:
            places = [
                self.place(frame.f_code, frame.f_lineno)
                for frame in _awaited(task.get_coro())
                if self.owns(frame.f_code)
            ]
            if places:
                return places[-1]
        in_threads = self.lines_in_threads()
        return in_threads[0] if in_threads else None

    def line_of_hook(self, name: str) -> str | None:
        """Where the author defined a method."""
        hook = getattr(self.cls, name, None)
        code = getattr(inspect.unwrap(hook) if callable(hook) else hook, "__code__", None)
        return None if code is None or not self.owns(code) else self.place(code, code.co_firstlineno)


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            yield frame
        coroutine = getattr(coroutine, "cr_await", None)


def _shown(file: str) -> str:
    """Relative where it lies below the working folder."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
