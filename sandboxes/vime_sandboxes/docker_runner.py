"""A sandbox whose image has Python: our runner is process 1, and answers in milliseconds."""

from __future__ import annotations

from functools import cache

from vime_sandboxes import runner_bundle
from vime_sandboxes.docker_stream import Stream
from vime_sandboxes.runner_link import RunnerLink

NO_PYTHON = 97
"""Exit status of process 1 when the image's Python is too old."""
# Starts what the owner sends first on standard input (a read-only root takes no files): compiled for the same
# Python as the owner's, and as text for any other.
_BOOTSTRAP = f"""\
import marshal, os, sys
if sys.version_info < (3, 9): os._exit({NO_PYTHON})
from _frozen_importlib_external import MAGIC_NUMBER
os.chdir("/work")
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece: os._exit(0)
        data += piece
    return data
compiled, source = take(int(sys.argv.pop(1))), take(int(sys.argv.pop(1)))
exec(marshal.loads(compiled[16:]) if compiled[:4] == MAGIC_NUMBER else compile(source, "runner", "exec"))
"""


@cache
def _programs() -> tuple[bytes, bytes]:
    return runner_bundle.compiled(), runner_bundle.source()


def command(*, ttl_s: float, data_bytes: int, max_processes: int, file_bytes: int) -> list[str]:
    """What process 1 is started as; the numbers are the runner's own."""
    sizes = (str(len(program)) for program in _programs())
    numbers = (repr(float(ttl_s)), str(data_bytes), str(max_processes), str(file_bytes))
    return ["python3", "-IS", "-c", _BOOTSTRAP, *sizes, *numbers]


def link(stream: Stream) -> RunnerLink:
    """Send the runner to a process 1 that was started with `command`, and speak to it."""

    def worded(reason: str) -> str:
        said = stream.errors.decode(errors="replace").strip()
        return f"{reason}; {said}" if said else reason

    stream.writer.write(b"".join(_programs()))
    return RunnerLink(stream, stream.writer, worded)
