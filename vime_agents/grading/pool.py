"""A function and its arguments -> its answer, out of a process that can be killed.

Three kinds of processes. The *server* is started once, imports the modules that graders live in, and forks
a *keeper* for each grading. The keeper forks the *grader*, watches it, and ends it with all that it started.
The caller talks to the keeper: when the caller goes away, whatever the reason, the keeper ends everything.

Answers come back as JSON, never as a pickle: what a model wrote may have talked the grader into anything.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

from vime_agents.errors import (
    ConfigError,
    ContractError,
    GraderCrashed,
    GraderError,
    GraderOutOfMemory,
    GraderTimeout,
    Unscorable,
)
from vime_agents.grading import wire

_START_TIMEOUT_S = 60.0
"""For the first import of a grader's module."""
_KEEPER_GRACE_S = 10.0
"""The keeper enforces the deadline; this much later, it is taken for dead itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderLimits:
    """What one grading may take."""

    timeout_s: float = 10.0
    """From the grader's start to its answer."""
    memory_mb: int = 1024
    """That each process of the grader may add to what its modules take."""
    max_processes: int = 8
    """At once, the grader's own included."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"grader limit {f.name} must be > 0 and finite, got {value!r}")


class GraderPool:
    """Runs graders, at most `size` at once on each event loop.

    Guarantees: every call of `run` ends, with an answer or a GraderError; a grader is forked for each call
    and leaves no process behind; nothing outlives this process, even when it is killed.
    """

    def __init__(self, *, size: int | None = None, limits: GraderLimits | None = None) -> None:
        """Start nothing yet.

        Args:
            size: graders at once; None: one for each CPU.
            limits: of each grading that does not bring its own.
        """
        if size is not None and size < 1:
            raise ConfigError(f"a grader pool's size must be >= 1, got {size}")
        self.size = size or os.cpu_count() or 1
        self.limits = limits or GraderLimits()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        limits: GraderLimits | None = None,
    ) -> Any:
        """What `function(*args, **kwargs)` returns, as JSON has it; an `async def` is awaited.

        Args:
            function: found by its module and name: no lambda, nothing of `__main__`.
            args: pickled.
            kwargs: pickled.
            limits: instead of the pool's.

        Raises:
            GraderTimeout, GraderOutOfMemory, GraderCrashed: it was ended, or ended itself.
            Unscorable: it says so. GraderError: it raised, or returned what JSON does not have.
            ContractError: the function or an argument cannot be sent.
        """
        limits = limits or self.limits
        module, name = _find(function)
        job = _pack(module, name, args, kwargs or {}, limits)
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.size))
        async with slots:
            try:
                answer = await self._play(job, module, limits)
            except _NotStarted:  # the server died with the request in its hands
                answer = await self._play(job, module, limits)
        return _value(answer, f"{module}.{name}", limits)

    def close(self) -> None:
        """End the server. What is running ends when its caller goes; a later `run` starts another."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _play(self, job: bytes, module: str, limits: GraderLimits) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                server = await self._send(theirs, module)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=wire.MAX_ANSWER_BYTES)
        except BaseException:
            ours.close()
            raise
        try:
            writer.write(job)
            await self._started(reader, server, module)
            async with asyncio.timeout(limits.timeout_s + _KEEPER_GRACE_S):
                return await _frame(reader)
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            return {"kind": "crashed", "detail": f"the process that watches it is gone: {error!r}"}
        finally:
            writer.transport.abort()

    async def _started(self, reader: asyncio.StreamReader, server: _Server, module: str) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await _frame(reader)
        except TimeoutError:
            self._give_up(server)
            raise GraderCrashed(
                f"no grader within {_START_TIMEOUT_S:g} s: does importing {module} not end?"
            ) from None
        except (asyncio.IncompleteReadError, OSError) as error:
            self._give_up(server)
            raise _NotStarted(f"the graders' server ended: does importing {module} end it?") from error

    async def _send(self, connection: socket.socket, module: str) -> _Server:
        """Hand a connection to the server, which is started if there is none, or none any more."""
        for _ in range(2):
            with self._lock:
                if self._server is not None and not self._server.alive():
                    self._server.close()
                    self._server = None
                if self._server is None:
                    self._server = _Server()
                server = self._server
            try:
                while not server.send(connection, module):  # noqa: ASYNC110 - a pipe that is full has no event
                    await asyncio.sleep(0.01)
            except OSError:
                self._give_up(server)
            else:
                return server
        raise GraderCrashed("the graders' server ends as soon as it is started")

    def _give_up(self, server: _Server) -> None:
        with self._lock:
            if self._server is server:
                self._server = None
        server.close()


class _NotStarted(GraderCrashed):
    """The server ended before a grader ran."""


class _Server:
    """The process that forks keepers."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._owner = os.getpid()
        paths = [path for path in sys.path if path]
        # One thread each: many graders run at once, and a fork copies no threads.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vime_agents.grading.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the caller, who then closes this
                env=os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)},
            )

    def alive(self) -> bool:
        """Whether it is this process's, and runs."""
        return self._owner == os.getpid() and self._process.poll() is None

    def send(self, connection: socket.socket, module: str) -> bool:
        """Whether the server was told; it was not when too much waits for it.

        Raises:
            OSError: it is gone.
        """
        try:
            socket.send_fds(self._control, [module.encode()], [connection.fileno()])
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """End it; bounded in time."""
        self._control.close()
        if self._owner != os.getpid():
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        # It has nothing to lose: what runs watches its caller.
        self._process.kill()
        self._process.wait()


@cache
def default_pool() -> GraderPool:
    """The pool of this process."""
    pool = GraderPool()
    atexit.register(pool.close)
    return pool


# A forked child has the pool in memory, but the server is its parent's.
os.register_at_fork(after_in_child=default_pool.cache_clear)


def _find(function: Callable[..., Any]) -> tuple[str, str]:
    """Module and name under which another process finds the function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    problem = ""
    if module == "__main__":
        problem = "it is defined in the script that runs; move it into a module"
    elif not module or not name or "<" in name:
        problem = "it has no name in its module; make it a function at the top of one"
    elif wire.find_function(module, name) is not function:
        problem = f"{module}.{name} is something else"
    if problem:
        raise ContractError(f"the grader {function!r} cannot be sent to its process: {problem}")
    return str(module), name


def _pack(
    module: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: GraderLimits
) -> bytes:
    try:
        arguments = pickle.dumps((args, dict(kwargs)))
    except Exception as error:
        raise ContractError(f"{module}.{name}: an argument cannot be pickled: {error}") from error
    header = {"module": module, "name": name, **asdict(limits), "num_bytes": len(arguments)}
    return wire.frame(header) + arguments


async def _frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    size = int.from_bytes(await reader.readexactly(wire.SIZE_BYTES), "big")
    return json.loads(await reader.readexactly(size))


def _value(answer: Mapping[str, Any], name: str, limits: GraderLimits) -> Any:
    kind, detail = answer["kind"], answer.get("detail", "")
    match kind:
        case "value":
            return answer["value"]
        case "timeout":
            raise GraderTimeout(f"{name}: no answer within {limits.timeout_s:g} s{detail}")
        case "memory":
            raise GraderOutOfMemory(f"{name}: needs more than {limits.memory_mb} MB{detail}")
        case "unscorable":
            raise Unscorable(detail)
        case "raised":
            raise GraderError(f"{name}: {detail}")
        case _:
            raise GraderCrashed(f"{name}: {detail}")
