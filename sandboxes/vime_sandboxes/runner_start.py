"""Start a command inside a sandbox: what the runner does between fork and exec, and the output it keeps."""

from __future__ import annotations

import _ctypes  # `ctypes` costs 5 ms to import, for its many types
import _signal  # pyright: ignore[reportMissingImports] - `signal` costs 4 ms to import, for enums
import errno
import posix as os
import resource

from vime_sandboxes.runner_frames import CHUNK

PR_SET_DUMPABLE = 4


class _Int(_ctypes._SimpleCData):
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int


prctl = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # pyright: ignore[reportArgumentType]


class Output:
    """One stream of a command: the head and the tail of what was written, and how much it was."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self.open = True
        self.wanted = True
        """False once its command has been answered: what a background process still writes goes nowhere."""
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take more output."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._tail_limit + CHUNK:
            del self._tail[: len(self._tail) - self._tail_limit]

    def content(self) -> bytes:
        """Everything, or the head followed by the tail."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._tail_limit) :])


class StartError(Exception):
    """The command could not be started: `stage` (fork, cwd, exec), errno and text."""

    def __init__(self, stage: bytes, number: bytes, text: bytes) -> None:
        self.fields = (stage, number, text)


def start(
    arguments: list[bytes],
    environment: dict[bytes, bytes],
    cwd: bytes,
    files: tuple[int, int, int],
    limits: list[tuple[int, int]],
) -> int:
    """Start a command with `files` as its standard streams, which are closed here; its process id.

    Raises:
        StartError: it did not start.
    """
    read, write = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _become(arguments, environment, cwd, files, write, limits)
    except OSError as error:
        os.close(read)
        text = error.strerror or str(error)
        raise StartError(b"fork", str(error.errno or 0).encode(), text.encode()) from error
    finally:
        for fd in (*files, write):
            os.close(fd)
    problem = os.read(read, 4096)  # empty at once when exec succeeded
    os.close(read)
    if problem:
        raise StartError(*problem.split(b"\0", 2))
    return pid


def _become(
    arguments: list[bytes],
    environment: dict[bytes, bytes],
    cwd: bytes,
    files: tuple[int, int, int],
    report: int,
    limits: list[tuple[int, int]],
) -> None:
    """In the new process: turn into the command. Never returns."""
    stage = "exec"
    try:
        os.setsid()
        for target, source in enumerate(files):
            os.dup2(source, target)
        for number in (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        # When memory runs out, commands die before process 1 does.
        os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"1000")
        stage = "cwd"
        os.chdir(cwd)
        stage = "exec"
        for which, value in limits:
            resource.setrlimit(which, (value, value))
        execute(arguments, environment)
    except (OSError, ValueError) as error:
        number = (error.errno if isinstance(error, OSError) else 0) or errno.EINVAL
        os.write(report, f"{stage}\0{number}\0{error}".encode(errors="replace"))
    finally:
        os._exit(127)


def execute(arguments: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Turn into a program, looked up on PATH. `os.execvpe` does the same, but imports `warnings` each time.

    Raises:
        OSError: it cannot be started; PermissionError only when no folder has one that can.
    """
    if b"/" in arguments[0]:
        os.execve(arguments[0], arguments, environment)
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in environment.get(b"PATH", b"").split(b":"):
        try:
            os.execve(folder + b"/" + arguments[0], arguments, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            problem = error
    raise problem
