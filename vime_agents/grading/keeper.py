"""One grading: the keeper forks the grader, watches it, and ends it with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import json
import os
import pickle
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from vime_agents.errors import Unscorable
from vime_agents.grading import processes, wire

_TICK_S = 0.05
"""How often the grader's processes are counted."""
_JOB_TIMEOUT_S = 30.0
_MAX_FILE_BYTES = 64 << 20
_MAX_FD = 4096
_SHOWN_OUTPUT_BYTES = 2000


def keep(connection: int) -> NoReturn:
    """Do one grading for the caller at the other end of `connection`; never returns."""
    try:
        # OSError: the caller went away, and nobody is left to be told anything.
        with contextlib.suppress(OSError), socket.socket(fileno=connection) as caller:
            os.setsid()
            processes.adopt_orphans()
            _keep(caller)
    except Exception:  # noqa: BLE001 - the caller finds the connection closed
        traceback.print_exc()
    finally:
        processes.end_descendants()
        os._exit(0)


def _keep(caller: socket.socket) -> None:
    caller.settimeout(_JOB_TIMEOUT_S)
    job, arguments = _receive(caller)
    answer_end, answer_start = os.pipe()
    output_end, output_start = os.pipe()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        processes.die_with_parent(keeper)
        _grade(job, arguments, answer_start, output_start)
    os.close(answer_start)
    os.close(output_start)
    caller.sendall(wire.frame({"kind": "started"}))
    answer = _Watch(caller, pid, answer_end, output_end, job).verdict()
    processes.end_descendants()
    caller.sendall(wire.frame(answer))


class _Watch:
    """The keeper's view of a running grader."""

    def __init__(
        self, caller: socket.socket, pid: int, answer_end: int, output_end: int, job: Mapping[str, Any]
    ) -> None:
        self._caller, self._pid, self._job = caller, pid, job
        self._answer_end, self._output_end = answer_end, output_end
        self._exit = os.pidfd_open(pid)
        self._answer, self._output = bytearray(), bytearray()
        for end in (answer_end, output_end):
            os.set_blocking(end, False)

    def verdict(self) -> dict[str, Any]:
        """Wait for an answer, the grader's end, a limit, or the caller's end (OSError)."""
        deadline = time.monotonic() + self._job["timeout_s"]
        poll = select.poll()
        for end in (self._caller.fileno(), self._answer_end, self._output_end, self._exit):
            poll.register(end, select.POLLIN)
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return {"kind": "timeout", "detail": self._said()}
            ready = {fd for fd, _ in poll.poll(min(left_s, _TICK_S) * 1000)}
            if self._caller.fileno() in ready:
                raise ConnectionResetError("the caller went away")
            for end, text in ((self._answer_end, self._answer), (self._output_end, self._output)):
                if end in ready and _drain(end, text):
                    poll.unregister(end)
            del self._output[:-_SHOWN_OUTPUT_BYTES]
            answer = self._complete()
            if answer is None and self._exit in ready:
                _drain(self._answer_end, self._answer)
                answer = self._complete() or self._ended()
            answer = answer or self._too_many()
            if answer is not None:
                return answer

    def _complete(self) -> dict[str, Any] | None:
        """What the grader answered, once all of it is here."""
        size = int.from_bytes(self._answer[: wire.SIZE_BYTES], "big")
        text = self._answer[wire.SIZE_BYTES :]
        if size > wire.MAX_ANSWER_BYTES:
            return {"kind": "crashed", "detail": f"its answer has more than {wire.MAX_ANSWER_BYTES} bytes"}
        if len(self._answer) < wire.SIZE_BYTES or len(text) < size:
            return None
        # The grader's own end of the pipe may be in other hands by now: only what it may say is passed on.
        return wire.checked_answer(bytes(text[:size]))

    def _ended(self) -> dict[str, Any]:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        _drain(self._output_end, self._output)
        how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return {"kind": "crashed", "detail": f"it {how} without an answer{self._said()}"}

    def _too_many(self) -> dict[str, Any] | None:
        limit = self._job["max_processes"]
        if len(processes.descendants(os.getpid())) <= limit:
            return None
        return {"kind": "crashed", "detail": f"it has more than {limit} processes at once{self._said()}"}

    def _said(self) -> str:
        text = self._output[-_SHOWN_OUTPUT_BYTES:].decode(errors="replace").strip()
        return f"; it printed: {text}" if text else ""


def _grade(job: Mapping[str, Any], arguments: bytes, answer_start: int, output_start: int) -> NoReturn:
    """In the grader's process: call the function, write its answer, end."""
    own = os.getpid()
    try:
        _confine(job, answer_start, output_start)
        frame = _frame(job, arguments)
    finally:
        if os.getpid() != own:  # a copy that the function forked, and that came back here as well
            os._exit(0)
    with contextlib.suppress(OSError):
        while frame:
            frame = frame[os.write(3, frame) :]
    os._exit(0)


def _confine(job: Mapping[str, Any], answer_start: int, output_start: int) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    kept = [os.dup(fd) for fd in (nothing, output_start, output_start, answer_start)]
    for place, fd in enumerate(kept):
        os.dup2(fd, place, inheritable=place < 3)
    os.closerange(4, _MAX_FD)
    faulthandler.enable(2)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    memory = now + (job["memory_mb"] << 20)
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
    ):
        resource.setrlimit(limit, (value, value))


def _frame(job: Mapping[str, Any], arguments: bytes) -> bytes:
    """The answer: what the function returned, or how it failed."""
    try:
        function = wire.find_function(job["module"], job["name"])
        if function is None:
            raise LookupError(f"{job['module']} has no {job['name']}")
        args, kwargs = pickle.loads(arguments)
        value = function(*args, **kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        return wire.frame({"kind": "value", "value": value})
    except MemoryError:
        return wire.frame({"kind": "memory"})
    except Unscorable as error:
        return wire.frame({"kind": "unscorable", "detail": str(error)[:2000]})
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like too: the caller raises it
        return wire.frame({"kind": "raised", "detail": _described(error)})


async def _awaited(value: Any) -> Any:
    return await value


def _described(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ fails
        text = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return text[:2000] + where


def _receive(caller: socket.socket) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(_exactly(caller, wire.SIZE_BYTES), "big")
    job = json.loads(_exactly(caller, size))
    return job, _exactly(caller, job["num_bytes"])


def _exactly(caller: socket.socket, num_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < num_bytes:
        piece = caller.recv(min(num_bytes - len(found), 1 << 20))
        if not piece:
            raise ConnectionResetError("the caller went away")
        found += piece
    return bytes(found)


def _drain(fd: int, text: bytearray) -> bool:
    """Take what there is to read; whether nothing more can come."""
    try:
        while len(text) <= 2 * wire.MAX_ANSWER_BYTES:
            piece = os.read(fd, 1 << 16)
            if not piece:
                return True
            text += piece
    except BlockingIOError:
        return False
    return False
