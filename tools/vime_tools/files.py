"""View, write and edit files of the episode's sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import ClassVar

from vime_agents.errors import (
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxOutputTooLarge,
    SandboxPermissionError,
    ToolError,
)
from vime_agents.sandbox import Sandbox
from vime_agents.tools import Toolset, tool
from vime_tools.model_text import as_utf8, without_nul


class Files(Toolset):
    """Gives the tools `view_file`, `write_file` and `edit_file`.

    Lines end with a line feed and nothing else; bytes that an edit does not name stay as they are.
    """

    max_bytes: ClassVar[int] = 4 << 20
    """Of a file that is viewed or edited."""
    max_lines: ClassVar[int] = 400
    """That one view shows."""

    @tool
    async def view_file(self, path: str, first_line: int = 1, last_line: int | None = None) -> str:
        """Show a file with line numbers.

        Args:
            path: relative to the working directory, or absolute.
            first_line: counted from 1.
            last_line: the last line to show; without it, as many as fit.
        """
        lines = (await self._read(path)).decode(errors="replace").split("\n")
        if lines[-1] == "":
            lines.pop()
        if not lines:
            return f"[{path} is empty]"
        last = len(lines) if last_line is None else min(last_line, len(lines))
        if not 1 <= first_line <= last:
            raise ToolError(
                f"{path} has lines 1 to {len(lines)}; there is no line {first_line} to {last_line}"
            )
        last = min(last, first_line + self.max_lines - 1)
        shown = [f"{number:6}\t{lines[number - 1]}" for number in range(first_line, last + 1)]
        if last < len(lines) and last != last_line:
            shown.append(f"[{path} goes on to line {len(lines)}]")
        return "\n".join(shown)

    @tool
    async def write_file(self, path: str, content: str) -> str:
        """Write a file, in place of what it held; folders on the way are made.

        Args:
            path: relative to the working directory, or absolute.
            content: all of the new content.
        """
        data = as_utf8(content, "content")
        await self._write(path, data)
        return f"Wrote {len(data)} bytes to {path}."

    @tool
    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a file that occurs exactly once.

        Args:
            path: relative to the working directory, or absolute.
            old: the piece, exactly as it stands there, with its white space and without line numbers.
            new: what comes in its place.
        """
        piece, replacement = as_utf8(old, "old text"), as_utf8(new, "new text")
        if not piece:
            raise ToolError("the old text is empty; use write_file to write a whole file")
        data = await self._read(path)
        found = _positions(data, piece)
        if not found:
            raise ToolError(
                f"the old text does not occur in {path}; it must match exactly, with its white space"
            )
        if len(found) > 1:
            lines = ", ".join(str(data.count(b"\n", 0, at) + 1) for at in found[:10])
            more = ", ..." if len(found) > 10 else ""
            raise ToolError(
                f"the old text occurs {len(found)} times in {path}, at lines {lines}{more}; "
                "give more of what stands around it"
            )
        (at,) = found
        await self._write(path, data[:at] + replacement + data[at + len(piece) :])
        line = data.count(b"\n", 0, at) + 1
        return f"Replaced the text at line {line} of {path}."

    async def _read(self, path: str) -> bytes:
        box = await self.host.sandbox()
        async with _models_mistakes(box, path, self.max_bytes):
            return await box.read(without_nul(path, "path"), max_bytes=self.max_bytes)

    async def _write(self, path: str, data: bytes) -> None:
        box = await self.host.sandbox()
        without_nul(path, "path")
        asked = await box.exec(["stat", "-L", "-c", "%a", "--", path])  # an edited script stays executable
        mode = int(asked.text, 8) if asked.ok and asked.text.strip().isdigit() else 0o644
        async with _models_mistakes(box, path, self.max_bytes):
            await box.write(path, data, mode=mode)


def _positions(data: bytes, piece: bytes) -> list[int]:
    """Where it begins; places may overlap."""
    found, at = [], data.find(piece)
    while at >= 0:
        found.append(at)
        at = data.find(piece, at + 1)
    return found


@contextlib.asynccontextmanager
async def _models_mistakes(box: Sandbox, path: str, max_bytes: int) -> AsyncIterator[None]:
    """What a path of the model's can cause is the tool's answer; all else is the sandbox's failure."""
    try:
        yield
    except SandboxFileNotFound as error:
        raise ToolError(f"there is no file {path:.200}") from error
    except SandboxPermissionError as error:
        raise ToolError(f"{path:.200} cannot be used: permission denied") from error
    except SandboxOutputTooLarge as error:
        raise ToolError(f"{path:.200} is larger than {max_bytes} bytes") from error
    except SandboxDiskFull as error:
        raise ToolError(f"no room is left for {path:.200}") from error
    except SandboxError as error:  # a folder, a loop of links, a name that is too long: they have no class
        if type(error) is not SandboxError or not await box.alive():
            raise
        raise ToolError(f"{path:.200} cannot be used: {str(error).removeprefix(f'{path}: ')}") from error
