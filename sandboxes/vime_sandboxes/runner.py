"""The program inside a sandbox, its process 1 where possible: starts commands, moves files for the owner.

It is started, as one program made by `runner_bundle`, with the arguments TTL_S DATA_BYTES MAX_PROCESSES
FILE_BYTES [OWNER_FD [FOLDER]] and a stream of frames (`runner_frames`) as standard input and output. OWNER_FD
is a pidfd of the owner, FOLDER what to remove at the end.

Being process 1 of its own pid namespace gives three things for nothing: no process inside can kill it, it
inherits and reaps every orphan, and its end is the end of everything inside. Elsewhere it inherits orphans by
request, and kills what it started before it ends. It ends when the owner does (a child that the owner has
forked may hold the stream open), when the stream closes, and when its time is up. Only the standard library
(Python 3.9 and later), and of that only what loads fast: `os` (of which `posix` is the part that is used
here), `signal`, `ctypes`, `json`, `collections` and `subprocess` would more than double the time to start.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] - `signal` costs 4 ms to import, for enums
import errno
import fcntl
import posix as os
import resource
import select
import sys
import time

from vime_sandboxes.runner_files import read_piece, write_piece
from vime_sandboxes.runner_frames import (
    BYE,
    CHUNK,
    CREDIT,
    DATA,
    DONE,
    EXEC,
    EXITED,
    EXTEND,
    FAILED,
    FILES,
    HEADER,
    KILL,
    LENGTH,
    READ,
    READY,
    SIGNAL,
    SPAWN,
    STARTED,
    STDERR,
    STDIN,
    STDOUT,
    WRITE,
    unpack,
)
from vime_sandboxes.runner_spawn import Spawned, pipe, receive_files
from vime_sandboxes.runner_start import PR_SET_DUMPABLE, Output, StartError, prctl, start
from vime_sandboxes.runner_tree import EXEC_VARIABLE, kill_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPEN_FILES = 1024
_DRAIN_LIMIT = 1 << 20
_BUFFER_BYTES = CHUNK + 4096
"""For the frames that are common."""
_MAX_WAIT_MS = 1 << 30
"""poll() takes no more than 24 days."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_S = 2.0
_OWNER_FD, _FOLDER = 5, 6
"""Which arguments they are, if there are as many."""


class Command:
    """One running EXEC or SPAWN."""

    def __init__(self, request: int, mark: str, pid: int, timeout_s: float) -> None:
        self.request, self.mark, self.pid = request, mark, pid
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.timed_out = False
        self.outputs: list[tuple[int, Output]] = []
        self.spawned: Spawned | None = None

    def kill(self) -> None:
        """Kill its whole tree, and see it dead."""
        kill_tree(self.pid, self.mark)


class Runner:
    """The loop."""

    def __init__(self, *, ttl_s: float, limits: list[tuple[int, int]], owner: int | None) -> None:
        self._end = 0.0
        self._ttl_s = ttl_s
        self._limits = limits
        self._owner = owner
        self._commands: dict[int, Command] = {}  # by pid
        self._spawned: dict[int, Command] = {}  # by request; until ended, and its streams too
        self._files: list[int] = []  # for the next SPAWN
        self._buffer = bytearray(_BUFFER_BYTES)
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        # Elsewhere than in a pid namespace of our own, other runners' commands may be in sight.
        self._mark = "" if os.getpid() == 1 else os.urandom(4).hex() + "-"

    def run(self) -> None:
        """Serve until the owner is gone or the time is up."""
        # Not dumpable: commands share this user, and must not read or trace process 1.
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        _signal.set_wakeup_fd(wake_write)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        if os.getpid() != 1:
            _signal.signal(_signal.SIGTERM, lambda *_: leave())
        # Commands can send it too: it means something only when the time is up.
        _signal.signal(_signal.SIGALRM, lambda *_: time.monotonic() >= self._end and leave())
        self._live(self._ttl_s)
        self.watch(0, self._serve, select.POLLIN)
        if self._owner is not None:
            self.watch(self._owner, leave, select.POLLIN)
            if os.getpid() == 1:  # the parent is bubblewrap's other process
                prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
        self.watch(wake_read, lambda: self._reap(wake_read), select.POLLIN)
        self.send(0, READY)
        while True:
            next_deadline = min([self._end, *(c.deadline for c in self._commands.values())])
            wait_ms = min(max(0.0, next_deadline - time.monotonic()) * 1000 + 1, _MAX_WAIT_MS)
            for fd, _ in self._poll.poll(wait_ms):
                if fd in self._handlers:
                    self._handlers[fd]()
            now = time.monotonic()
            if now >= self._end:
                self.send(0, BYE, b"ttl")
                leave()
            for command in list(self._commands.values()):
                if now >= command.deadline:
                    command.timed_out, command.deadline = True, float("inf")
                    command.kill()

    def watch(self, fd: int, handler: Callable[[], object], events: int) -> None:
        """Call `handler` whenever one of `events` has come for `fd`."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop that."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def send(self, request: int, kind: int, *fields: bytes) -> None:
        """Tell the owner."""
        size = sum(LENGTH.size + len(f) for f in fields)
        parts = [HEADER.pack(size, request, kind)]
        for content in fields:
            parts += [LENGTH.pack(len(content)), content]
        written = os.writev(1, parts)
        if written < HEADER.size + size:
            left = memoryview(b"".join(parts))[written:]
            while left:
                left = left[os.write(1, left) :]

    def _receive(self, size: int) -> memoryview:
        """So many bytes, until more are received."""
        data = memoryview(self._buffer if size <= _BUFFER_BYTES else bytearray(size))[:size]
        left = data
        while left:
            count = os.readv(0, [left])
            if not count:
                leave()  # the owner is gone
            left = left[count:]
        return data

    def _serve(self) -> None:
        size, request, kind = HEADER.unpack(self._receive(HEADER.size))
        fields = unpack(self._receive(size))
        try:
            if kind == STDIN:  # the most of all that comes: it is not copied
                streams = self._streams(int(bytes(fields[0])))
                if streams is not None:
                    streams.feed(fields[1])
            else:
                self._answer(request, kind, [bytes(f) for f in fields])
        except StartError as error:
            self.send(request, FAILED, *error.fields)
        except OSError as error:
            text = error.strerror or str(error)
            self.send(request, FAILED, b"file", str(error.errno or 0).encode(), text.encode())
        except ValueError as error:  # a NUL in a path
            self.send(request, FAILED, b"file", str(errno.EINVAL).encode(), str(error).encode())

    def _answer(self, request: int, kind: int, fields: list[bytes]) -> None:
        if kind == EXEC:
            self._exec(request, fields)
        elif kind == SPAWN:
            self._spawn(request, fields)
        elif kind == READ:
            self.send(request, DATA, read_piece(fields[0], int(fields[1]), int(fields[2])))
        elif kind == WRITE:
            write_piece(fields[0], int(fields[1]), fields[2] == b"1", fields[3])
            self.send(request, DONE)
        elif kind == KILL:
            self._kill(int(fields[0]))
        elif kind == CREDIT:
            streams = self._streams(int(fields[0]))
            if streams is not None:
                streams.grant(int(fields[1]))
        elif kind == FILES:
            self._files += receive_files()
        elif kind == SIGNAL:
            self._signal(int(fields[0]), int(fields[1]))
            self.send(request, DONE)
        else:
            if kind == EXTEND:
                self._live(float(fields[0]))
            self.send(request, DONE)

    def _kill(self, request: int) -> None:
        for command in list(self._commands.values()):
            if command.request == request:
                command.kill()

    def _streams(self, request: int) -> Spawned | None:
        command = self._spawned.get(request)
        return None if command is None else command.spawned

    def _live(self, ttl_s: float) -> None:
        self._end = time.monotonic() + ttl_s
        # For when the owner has stopped reading and the loop waits for it.
        _signal.setitimer(_signal.ITIMER_REAL, ttl_s + _GRACE_S)

    def _signal(self, request: int, number: int) -> None:
        command = self._spawned.get(request)
        if command is None or command.pid not in self._commands:
            return  # it has ended
        if number == _signal.SIGKILL:
            command.kill()
        else:
            os.kill(command.pid, number)

    def _exec(self, request: int, fields: list[bytes]) -> None:
        timeout_s, max_output, cwd, stdin = float(fields[0]), int(fields[1]), fields[2], fields[3]
        pipes = (os.pipe(), os.pipe())
        # A file instead of a pipe: nothing has to be fed to a command that does not read.
        stdin_fd = os.memfd_create("stdin")
        os.write(stdin_fd, stdin)
        os.lseek(stdin_fd, 0, 0)
        files = (stdin_fd, pipes[0][1], pipes[1][1])
        command = self._start(
            request, timeout_s, fields[4], fields[5], cwd, files, [pipes[0][0], pipes[1][0]]
        )
        for read, _ in pipes:
            output = Output(max_output)
            command.outputs.append((read, output))
            os.set_blocking(read, False)
            self.watch(read, lambda fd=read, output=output: self._read_output(fd, output), select.POLLIN)

    def _spawn(self, request: int, fields: list[bytes]) -> None:
        given, self._files = dict(zip(map(int, fields[4:]), self._files)), []  # noqa: B905 - as below
        pipes = {stream: pipe() for stream in range(3) if stream not in given}
        theirs = {stream: ends[stream > 0] for stream, ends in pipes.items()} | given
        ours = {stream: ends[stream == 0] for stream, ends in pipes.items()}
        files = (theirs[0], theirs[1], theirs[2])
        command = self._start(
            request, float(fields[0]), fields[2], fields[3], fields[1], files, list(ours.values())
        )
        self.send(request, STARTED, str(command.pid).encode())
        command.spawned = Spawned(self, request, ours)
        for ended in list(self._spawned.values()):
            self._forget(ended)
        self._spawned[request] = command

    def _start(
        self,
        request: int,
        timeout_s: float,
        arguments: bytes,
        variables: bytes,
        cwd: bytes,
        files: tuple[int, int, int],
        ours: list[int],
    ) -> Command:
        pairs = unpack(variables)
        mark = f"{self._mark}{request}"
        environment = dict(os.environ)
        environment.update(zip(pairs[::2], pairs[1::2]))  # noqa: B905 - Python 3.9 has no `strict`
        environment[EXEC_VARIABLE.encode()] = mark.encode()
        try:
            pid = start(unpack(arguments), environment, cwd, files, self._limits)
        except StartError:
            for fd in ours:
                os.close(fd)
            raise
        command = self._commands[pid] = Command(request, mark, pid, timeout_s)
        return command

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
        self.unwatch(fd)
        os.close(fd)
        return False

    def _reap(self, wake: int) -> None:
        while True:
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                break
        for pid, status in reap():
            if pid in self._commands:
                self._finish(self._commands.pop(pid), os.waitstatus_to_exitcode(status))

    def _finish(self, command: Command, code: int) -> None:
        """Answer as soon as the command itself has ended, whoever still holds its output."""
        if command.spawned is not None:
            command.spawned.finish()
            totals = list(command.spawned.totals.values())
        else:
            self._send_output(command)
            totals = [output.total for _, output in command.outputs]
        numbers = (max(code, 0), max(-code, 0), int(command.timed_out))
        duration_s = time.monotonic() - command.started
        fields = (str(n).encode() for n in (*numbers, *totals, duration_s))
        self.send(command.request, EXITED, *fields)

    def _send_output(self, command: Command) -> None:
        for kind, (fd, output) in zip((STDOUT, STDERR), command.outputs):  # noqa: B905 - as above
            limit = output.total + _DRAIN_LIMIT
            while output.open and output.total < limit and self._read_output(fd, output):
                pass
            output.wanted = False
            content = output.content()
            for first in range(0, len(content), CHUNK):
                self.send(command.request, kind, content[first : first + CHUNK])

    def _forget(self, command: Command) -> None:
        """Drop a SPAWN of which nothing more can come."""
        if command.spawned is not None and command.spawned.ended and command.pid not in self._commands:
            self._spawned.pop(command.request, None)


def reap() -> Iterator[tuple[int, int]]:
    """Process id and status of every child that has ended by now."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def leave() -> None:
    """End, and everything that was started here with it, the folder that was made for it too."""
    if os.getpid() != 1:
        _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
        kill_tree(os.getpid(), None)
        list(reap())  # the machine's process 1 may not do it
        if len(sys.argv) > _FOLDER:
            import shutil  # slow to load, and rarely needed

            shutil.rmtree(sys.argv[_FOLDER], ignore_errors=True)
    os._exit(0)


def main() -> None:
    """Entry point inside the sandbox."""
    owner = int(sys.argv[_OWNER_FD]) if len(sys.argv) > _OWNER_FD else None
    # What bubblewrap was given is none of the commands' business.
    os.closerange(3, OPEN_FILES if owner is None else owner)
    if owner is not None:
        os.closerange(owner + 1, OPEN_FILES)
        os.set_inheritable(owner, False)
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
    try:
        Runner(ttl_s=float(sys.argv[1]), limits=lowered, owner=owner).run()
    except (BrokenPipeError, ConnectionResetError):  # the owner is gone
        leave()
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be left behind
        sys.excepthook(type(error), error, error.__traceback__)
        leave()


if __name__ == "__main__":
    main()
