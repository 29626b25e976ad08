"""Finds in a server's log what a person needs to read."""

from __future__ import annotations

import re
from pathlib import Path

_PREFIX = re.compile(r"^\(\w+ pid=\d+\)\s?(?:(?:ERROR|INFO|WARNING) [\d:. -]+\[[^\]]+\]\s?)?")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)\b.*")
_BOUNDARY = ("Traceback", "The above exception", "During handling", "For further information")
# What a dying child makes its parent say; the child's own words come earlier in the log.
_FOLLOW_UPS = ("Engine core initialization failed", "WorkerProc initialization failed", "EngineDeadError")
_MESSAGE_LINES = 4
_TAIL_LINES = 12
_READ_BYTES = 256 * 1024


def explain(log: Path) -> str:
    """The first real exception of the log, else its last lines; with the log's path."""
    if not log.is_file():
        return f"(no log at {log})"
    lines = [_PREFIX.sub("", line) for line in _read_end(log).splitlines() if line.strip()]
    raised = [at for at, line in enumerate(lines) if _EXCEPTION.match(line)]
    roots = [at for at in raised if not any(words in lines[at] for words in _FOLLOW_UPS)]
    if roots or raised:
        return f"{_message(lines, (roots or raised)[0])} (log: {log})"
    return "\n  ".join([f"last lines of {log}:", *lines[-_TAIL_LINES:]])


def _message(lines: list[str], at: int) -> str:
    """The exception's line and those that continue it: pydantic, for one, says the cause below."""
    message = [lines[at]]
    for line in lines[at + 1 : at + _MESSAGE_LINES]:
        if line.lstrip().startswith(_BOUNDARY) or _EXCEPTION.match(line):
            break
        message.append(line.strip())
    return " ".join(message)


def _read_end(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _READ_BYTES))
        return stream.read().decode(errors="replace")
