"""The program that a sandbox runs as its process 1: it starts commands and moves files for the owner outside.

It is started, compiled, as `python3 -IS runner.pyc TTL_S DATA_BYTES MAX_PROCESSES FILE_BYTES` with one socket
as both standard input and output. The owner imports this module for the frame format only.

    frame   = payload length (u32), request id (u32), kind (u8), payload
    payload = fields, each a length (u32) and that many bytes

Being process 1 of its own pid namespace gives three things for nothing: no process inside can kill it, it
inherits and reaps every orphan, and its end is the end of everything inside. It therefore ends when the
owner's socket closes, and when its time is up. Only the standard library, and of that only what loads fast:
`signal`, `json`, `collections` and `subprocess` would more than double the time to start.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal` costs 4 ms to import, for enums
import ctypes
import errno
import fcntl
import os
import resource
import select
import stat
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HEADER = struct.Struct("!IIB")
_LENGTH = struct.Struct("!I")

EXEC, KILL, READ, WRITE, PING = range(1, 6)
"""Requests. EXEC: timeout_s, max_output, cwd, stdin, packed arguments, packed environment (name, value, ...).
KILL: id of an EXEC. READ: path, offset, length. WRITE: path, mode, append, data. PING: nothing."""
READY, STDOUT, STDERR, EXITED, DATA, DONE, FAILED, BYE = range(16, 24)
"""Answers. STDOUT, STDERR: a piece of output, before EXITED: status, signal, timed_out, bytes of stdout,
bytes of stderr, duration_s. DATA: a piece of a file. FAILED: stage, errno, text. BYE: why it ends."""

CHUNK = 1 << 20
"""Most bytes of one field that the runner sends."""
EXEC_VARIABLE = "VIME_EXEC"
"""Set for every command, so that processes which left its session can still be found."""
OPEN_FILES = 1024
_DRAIN_LIMIT = 1 << 20
_KILL_TIMEOUT_S = 5.0
_PR_SET_DUMPABLE = 4


def pack(fields: Iterable[bytes]) -> bytes:
    """Fields -> payload."""
    return b"".join(_LENGTH.pack(len(f)) + f for f in fields)


def unpack(payload: bytes) -> list[bytes]:
    """Payload -> fields. Raises ValueError when the lengths do not add up."""
    fields, position = [], 0
    while position < len(payload):
        if position + 4 > len(payload):
            raise ValueError("truncated length")
        (size,) = _LENGTH.unpack_from(payload, position)
        position += 4
        if position + size > len(payload):
            raise ValueError("truncated field")
        fields.append(payload[position : position + size])
        position += size
    return fields


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


class Command:
    """One running EXEC."""

    def __init__(self, request: int, pid: int, deadline: float, outputs: list[tuple[int, Output]]) -> None:
        self.request, self.pid, self.deadline, self.outputs = request, pid, deadline, outputs
        self.started = time.monotonic()
        self.timed_out = False


class Runner:
    """The loop of process 1."""

    def __init__(self, *, ttl_s: float, limits: list[tuple[int, int]]) -> None:
        self._end = time.monotonic() + ttl_s
        self._limits = limits
        self._commands: dict[int, Command] = {}  # by pid
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._prctl = ctypes.CDLL(None).prctl

    def run(self) -> None:
        """Serve until the owner is gone or the time is up."""
        # Not dumpable: commands share this user, and must not read or trace process 1.
        self._prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        _signal.set_wakeup_fd(wake_write)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        self._watch(0, self._serve)
        self._watch(wake_read, lambda: self._reap(wake_read))
        self._send(0, READY)
        while True:
            next_deadline = min([self._end, *(c.deadline for c in self._commands.values())])
            wait_ms = max(0.0, next_deadline - time.monotonic()) * 1000 + 1
            for fd, _ in self._poll.poll(wait_ms):
                if fd in self._handlers:
                    self._handlers[fd]()
            now = time.monotonic()
            if now >= self._end:
                self._send(0, BYE, b"ttl")
                os._exit(0)
            for command in list(self._commands.values()):
                if now >= command.deadline:
                    command.timed_out, command.deadline = True, float("inf")
                    kill_tree(command)

    def _watch(self, fd: int, handler: Callable[[], object]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _send(self, request: int, kind: int, *fields: bytes) -> None:
        payload = pack(fields)
        left = memoryview(HEADER.pack(len(payload), request, kind) + payload)
        while left:
            left = left[os.write(1, left) :]

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = os.read(0, min(size - len(data), CHUNK))
            if not piece:
                os._exit(0)  # the owner is gone
            data += piece
        return bytes(data)

    def _serve(self) -> None:
        size, request, kind = HEADER.unpack(self._receive(HEADER.size))
        fields = unpack(self._receive(size))
        try:
            if kind == EXEC:
                self._start(request, fields)
            elif kind == READ:
                self._send(request, DATA, read_piece(fields[0], int(fields[1]), int(fields[2])))
            elif kind == WRITE:
                write_piece(fields[0], int(fields[1]), fields[2] == b"1", fields[3])
                self._send(request, DONE)
            elif kind == KILL:
                for command in list(self._commands.values()):
                    if command.request == int(fields[0]):
                        kill_tree(command)
            else:
                self._send(request, DONE)
        except OSError as error:
            self._fail(request, "file", error)
        except ValueError as error:  # a NUL in a path
            self._fail(request, "file", OSError(errno.EINVAL, str(error)))

    def _fail(self, request: int, stage: str, error: OSError) -> None:
        text = error.strerror or str(error)
        self._send(request, FAILED, stage.encode(), str(error.errno or 0).encode(), text.encode())

    def _start(self, request: int, fields: list[bytes]) -> None:
        timeout_s, max_output, cwd, stdin = float(fields[0]), int(fields[1]), fields[2], fields[3]
        arguments, pairs = unpack(fields[4]), unpack(fields[5])
        environment = dict(os.environb)
        environment.update(zip(pairs[::2], pairs[1::2], strict=True))
        environment[EXEC_VARIABLE.encode()] = str(request).encode()
        pipes = [os.pipe() for _ in range(3)]  # stdout, stderr, and how the start went
        # A file instead of a pipe: nothing has to be fed to a command that does not read.
        stdin_fd = os.memfd_create("stdin")
        os.write(stdin_fd, stdin)
        os.lseek(stdin_fd, 0, os.SEEK_SET)
        try:
            pid = os.fork()
        except OSError as error:
            for fd in [stdin_fd, *(fd for pipe in pipes for fd in pipe)]:
                os.close(fd)
            self._fail(request, "fork", error)
            return
        if pid == 0:
            self._become(arguments, environment, cwd, stdin_fd, [w for _, w in pipes])
        for fd in [stdin_fd, *(w for _, w in pipes)]:
            os.close(fd)
        problem = os.read(pipes[2][0], 4096)  # empty at once when exec succeeded
        os.close(pipes[2][0])
        if problem:
            stage, number, text = problem.split(b"\0", 2)
            os.close(pipes[0][0])
            os.close(pipes[1][0])
            self._send(request, FAILED, stage, number, text)
            return
        outputs = [(pipes[0][0], Output(max_output)), (pipes[1][0], Output(max_output))]
        for fd, output in outputs:
            os.set_blocking(fd, False)
            self._watch(fd, lambda fd=fd, output=output: self._read_output(fd, output))
        self._commands[pid] = Command(request, pid, time.monotonic() + timeout_s, outputs)

    def _become(
        self, arguments: list[bytes], environment: dict[bytes, bytes], cwd: bytes, stdin: int, out: list[int]
    ) -> None:
        """In the new process: turn into the command. Never returns."""
        stage = "exec"
        try:
            os.setsid()
            for source, target in ((stdin, 0), (out[0], 1), (out[1], 2)):
                os.dup2(source, target)
            for number in (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            self._prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
            # When memory runs out, commands die before process 1 does.
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"1000")
            stage = "cwd"
            os.chdir(cwd)
            stage = "exec"
            for which, value in self._limits:
                resource.setrlimit(which, (value, value))
            execute(arguments, environment)
        except (OSError, ValueError) as error:
            number = (error.errno if isinstance(error, OSError) else 0) or errno.EINVAL
            os.write(out[2], f"{stage}\0{number}\0{error}".encode(errors="replace"))
        finally:
            os._exit(127)

    def _read_output(self, fd: int, output: Output) -> bool:
        """Take what is there; False when there is nothing more for now, or ever."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if data:
            if output.wanted:
                output.add(data)
            return True
        # From here on the number may come to mean another command's pipe; `open` says that it is not ours.
        output.open = False
        self._poll.unregister(fd)
        del self._handlers[fd]
        os.close(fd)
        return False

    def _reap(self, wake: int) -> None:
        while True:
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                break
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._commands:
                self._finish(self._commands.pop(pid), os.waitstatus_to_exitcode(status))

    def _finish(self, command: Command, code: int) -> None:
        """Answer as soon as the command itself has ended, whoever still holds its output."""
        for kind, (fd, output) in zip((STDOUT, STDERR), command.outputs, strict=True):
            limit = output.total + _DRAIN_LIMIT
            while output.open and output.total < limit and self._read_output(fd, output):
                pass
            output.wanted = False
            content = output.content()
            for start in range(0, len(content), CHUNK):
                self._send(command.request, kind, content[start : start + CHUNK])
        numbers = (max(code, 0), max(-code, 0), int(command.timed_out))
        totals = (output.total for _, output in command.outputs)
        duration_s = time.monotonic() - command.started
        fields = (str(n).encode() for n in (*numbers, *totals, duration_s))
        self._send(command.request, EXITED, *fields)


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


def read_piece(path: bytes, offset: int, length: int) -> bytes:
    """Up to `length` bytes of a regular file. Never blocks: a pipe or a device is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _require_regular(fd)
        return os.pread(fd, min(length, CHUNK), offset)
    finally:
        os.close(fd)


def write_piece(path: bytes, mode: int, append: bool, data: bytes) -> None:
    """Start a file, making its folders, or append to it."""
    if not append:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    flags = os.O_APPEND if append else os.O_CREAT | os.O_TRUNC
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flags, mode)
    try:
        _require_regular(fd)
        if not append:
            os.fchmod(fd, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


def _require_regular(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def kill_tree(command: Command) -> None:
    """Kill a command and everything it started, whatever session or parent that has by now, and see it dead.

    Everything is stopped before anything is killed: at its process limit a fork bomb can only replace what
    dies, and what is stopped neither dies nor forks.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        new = {pid for pid in tree(command) - seen if _runs(pid)}
        _signal_all(new, _signal.SIGSTOP)
        seen |= new
        if new:
            continue
        if not any(_runs(pid) for pid in seen):
            return
        _signal_all(seen, _signal.SIGKILL)
        time.sleep(0.001)
    _signal_all({-1}, _signal.SIGKILL)  # hopeless: all but process 1


def _runs(pid: int) -> bool:
    try:
        return _slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def tree(command: Command) -> set[int]:
    """Its session, processes that carry its mark, and all their descendants."""
    mark = f"\0{EXEC_VARIABLE}={command.request}\0".encode()
    parents: dict[int, int] = {}
    found = {command.pid}
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            fields = _slurp(f"/proc/{name}/stat").rpartition(b")")[2].split()
            parents[int(name)] = int(fields[1])
            if int(fields[3]) == command.pid or mark in b"\0" + _slurp(f"/proc/{name}/environ"):
                found.add(int(name))
        except OSError:  # it ended meanwhile
            continue
    while True:
        more = {p for p, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def _slurp(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def main() -> None:
    """Entry point inside the sandbox."""
    os.closerange(3, OPEN_FILES)  # what bubblewrap was given is none of the commands' business
    data_bytes, max_processes, file_bytes = map(int, sys.argv[2:5])
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, data_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, max_processes + 1),  # + 1: process 1 is counted too
    ]
    hard = {which: resource.getrlimit(which)[1] for which, _ in limits}
    lowered = [(w, v if hard[w] == resource.RLIM_INFINITY else min(v, hard[w])) for w, v in limits]
    fcntl.fcntl(0, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    Runner(ttl_s=float(sys.argv[1]), limits=lowered).run()


if __name__ == "__main__":
    main()
