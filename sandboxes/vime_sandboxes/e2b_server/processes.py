"""Programs inside one sandbox: E2B's Connect-RPC service `process.Process`."""

from __future__ import annotations

import asyncio
import base64
import posixpath
import signal
from collections.abc import AsyncIterator
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb
from e2b.envd.process.process_connect import Process
from protobuf import Oneof

from vime_agents.errors import (
    CommandNotFound,
    SandboxDead,
    SandboxError,
    SandboxFileNotFound,
    SandboxUnsupported,
)
from vime_agents.sandbox import ExecResult, SandboxProcess
from vime_sandboxes.e2b_server.boxes import Box, Boxes

DRAIN_S = 0.2
"""How long output may still come after a program's end, from what it left in the background."""
KEEPALIVE_S = 50.0
DEFAULT_USER = "user"
"""E2B's name of the unprivileged user; here: the backend's."""
GONE = "The sandbox was not found"
"""The client recognises a dead sandbox by these words."""
_Event = process_pb.ProcessEvent


class Program:
    """One running program, and who listens to it."""

    def __init__(self, box: Box, process: SandboxProcess, request: process_pb.StartRequest) -> None:
        self.process, self.request = process, request
        self.input = asyncio.Lock()
        """Input that two requests bring must not be mixed."""
        self._box = box
        self._listeners: set[asyncio.Queue[process_pb.ProcessEvent | ConnectError]] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Listen to the program; whoever wants all of its output has to `listen` first."""
        self._box.programs[self.process.pid] = self
        self._task = asyncio.create_task(self._pump())

    def listen(self) -> asyncio.Queue[process_pb.ProcessEvent | ConnectError]:
        """Everything from now on, up to the end event or an error. A slow listener holds the program back."""
        queue: asyncio.Queue[process_pb.ProcessEvent | ConnectError] = asyncio.Queue(maxsize=64)
        self._listeners.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[process_pb.ProcessEvent | ConnectError]) -> None:
        """No longer listen."""
        self._listeners.discard(queue)
        while not queue.empty():  # the pump may be waiting for room
            queue.get_nowait()

    def abandon(self) -> None:
        """The sandbox is gone."""
        if self._task is not None:
            self._task.cancel()
        self._box.programs.pop(self.process.pid, None)
        for queue in self._listeners:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(ConnectError(Code.UNAVAILABLE, GONE))

    async def _pump(self) -> None:
        reading = asyncio.create_task(self._read())
        try:
            result = await self.process.wait()
            await asyncio.wait({reading}, timeout=DRAIN_S)
        except SandboxDead:
            self.abandon()
            return
        except SandboxError as error:
            last: process_pb.ProcessEvent | ConnectError = ConnectError(Code.INTERNAL, str(error))
        else:
            last = _Event(event=Oneof("end", end_event(result)))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        self._box.programs.pop(self.process.pid, None)
        await self._tell(last)

    async def _read(self) -> None:
        async for stream, data in self.process.output():
            piece = (
                _Event.DataEvent(output=Oneof("stdout", data))
                if stream == "stdout"
                else _Event.DataEvent(output=Oneof("stderr", data))
            )
            await self._tell(_Event(event=Oneof("data", piece)))

    async def _tell(self, event: process_pb.ProcessEvent | ConnectError) -> None:
        for queue in list(self._listeners):
            await queue.put(event)


def end_event(result: ExecResult) -> process_pb.ProcessEvent.EndEvent:
    """How a program ended, in the words of Go's `os.ProcessState`, which E2B's own service uses."""
    if result.exit_code is not None:
        status = f"exit status {result.exit_code}"
        error = status if result.exit_code else None
        return _Event.EndEvent(exit_code=result.exit_code, exited=True, status=status, error=error)
    number = result.signal or signal.SIGKILL
    words = {signal.SIGKILL: "killed", signal.SIGTERM: "terminated", signal.SIGINT: "interrupt"}
    status = f"signal: {words.get(signal.Signals(number)) or signal.strsignal(number) or number}".lower()
    return _Event.EndEvent(exit_code=-1, exited=False, status=status, error=status)


class ProcessService(Process):
    """The service; which sandbox is meant comes in a header."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def start(  # noqa: D102 - the methods are E2B's
        self, request: process_pb.StartRequest, ctx: Any, /
    ) -> AsyncIterator[process_pb.StartResponse]:
        box = box_of(self._boxes, ctx)
        program = await self._spawn(box, request, user_of(ctx))
        queue = program.listen()
        program.begin()
        async for event in self._follow(program, queue, ctx):
            yield process_pb.StartResponse(event=event)

    async def connect(  # noqa: D102
        self, request: process_pb.ConnectRequest, ctx: Any, /
    ) -> AsyncIterator[process_pb.ConnectResponse]:
        program = self._program(request.process, ctx)
        async for event in self._follow(program, program.listen(), ctx):
            yield process_pb.ConnectResponse(event=event)

    async def list(self, request: process_pb.ListRequest, ctx: Any, /) -> process_pb.ListResponse:  # noqa: D102
        programs = box_of(self._boxes, ctx).programs
        infos = []
        for pid, program in programs.items():
            started = program.request
            info = process_pb.ProcessInfo(pid=pid, config=started.process)
            if started.has_field("tag"):
                info.tag = started.tag
            infos.append(info)
        return process_pb.ListResponse(processes=infos)

    async def send_input(  # noqa: D102
        self, request: process_pb.SendInputRequest, ctx: Any, /
    ) -> process_pb.SendInputResponse:
        await self._input(self._program(request.process, ctx), request.input)
        return process_pb.SendInputResponse()

    async def stream_input(  # noqa: D102
        self, request: AsyncIterator[process_pb.StreamInputRequest], ctx: Any, /
    ) -> process_pb.StreamInputResponse:
        program: Program | None = None
        async for message in request:
            match message.event:
                case Oneof(field="start", value=start):
                    program = self._program(start.process, ctx)
                case Oneof(field="data", value=data):
                    if program is None:
                        raise ConnectError(Code.INVALID_ARGUMENT, "data before the start event")
                    await self._input(program, data.input)
        return process_pb.StreamInputResponse()

    async def close_stdin(  # noqa: D102
        self, request: process_pb.CloseStdinRequest, ctx: Any, /
    ) -> process_pb.CloseStdinResponse:
        program = self._program(request.process, ctx)
        async with program.input:
            await program.process.close_stdin()
        return process_pb.CloseStdinResponse()

    async def send_signal(  # noqa: D102
        self, request: process_pb.SendSignalRequest, ctx: Any, /
    ) -> process_pb.SendSignalResponse:
        number = int(request.signal)
        if number not in (signal.SIGTERM, signal.SIGKILL):
            raise ConnectError(Code.UNIMPLEMENTED, f"signal {number} cannot be sent")
        await self._program(request.process, ctx).process.kill(number)
        return process_pb.SendSignalResponse()

    async def update(self, request: process_pb.UpdateRequest, ctx: Any, /) -> process_pb.UpdateResponse:  # noqa: D102
        raise ConnectError(Code.UNIMPLEMENTED, "this server has no pseudo-terminals")

    # ------------------------------------------------------------------------------------- inside

    async def _spawn(self, box: Box, request: process_pb.StartRequest, user: str | None) -> Program:
        wanted = request.process
        if request.has_field("pty"):
            raise ConnectError(Code.UNIMPLEMENTED, "this server has no pseudo-terminals")
        if wanted is None or not wanted.cmd or box.sandbox is None:
            raise ConnectError(Code.INVALID_ARGUMENT, "no command")
        cwd = resolve(box, wanted.cwd if wanted.has_field("cwd") else "")
        try:
            process = await box.sandbox.spawn(
                [wanted.cmd, *wanted.args], env=dict(wanted.envs), cwd=cwd, user=user
            )
        except CommandNotFound as error:
            raise ConnectError(Code.INVALID_ARGUMENT, str(error)) from error
        except SandboxFileNotFound as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd {cwd!r} does not exist") from error
        except SandboxError as error:
            raise rpc_error(error, user) from error
        # E2B's own default, for old clients: input is open unless it was declined.
        if request.has_field("stdin") and not request.stdin:
            await process.close_stdin()
        return Program(box, process, request)

    async def _follow(
        self, program: Program, queue: asyncio.Queue[process_pb.ProcessEvent | ConnectError], ctx: Any
    ) -> AsyncIterator[process_pb.ProcessEvent]:
        left_ms = ctx.timeout_ms
        deadline = None if left_ms is None else asyncio.get_running_loop().time() + left_ms / 1000
        interval_s = float(ctx.request_headers.get("keepalive-ping-interval") or KEEPALIVE_S)
        try:
            yield _Event(event=Oneof("start", _Event.StartEvent(pid=program.process.pid)))
            while True:
                event = await _next(queue, deadline, interval_s)
                if event is None:
                    await program.process.kill()
                    raise ConnectError(Code.DEADLINE_EXCEEDED, "the command's timeout is over")
                if isinstance(event, ConnectError):
                    raise event
                yield event
                if isinstance(event.event, Oneof) and event.event.field == "end":
                    return
        finally:
            program.leave(queue)

    async def _input(self, program: Program, given: process_pb.ProcessInput | None) -> None:
        what = given.input if given is not None else None
        if what is None or what.field != "stdin":
            raise ConnectError(Code.INVALID_ARGUMENT, "this server has no pseudo-terminals")
        async with program.input:
            try:
                await program.process.write(what.value)
            except BrokenPipeError as error:
                raise ConnectError(Code.FAILED_PRECONDITION, "stdin is closed") from error
            except SandboxError as error:
                raise rpc_error(error) from error

    def _program(self, selector: process_pb.ProcessSelector | None, ctx: Any) -> Program:
        programs = box_of(self._boxes, ctx).programs
        which = selector.selector if selector is not None else None
        for pid, program in programs.items():
            if which == Oneof("pid", pid):
                return program
            if program.request.has_field("tag") and which == Oneof("tag", program.request.tag):
                return program
        raise ConnectError(Code.NOT_FOUND, f"no such process: {which}")


async def _next(
    queue: asyncio.Queue[process_pb.ProcessEvent | ConnectError], deadline: float | None, interval_s: float
) -> process_pb.ProcessEvent | ConnectError | None:
    """The next event; a keep-alive when none comes for `interval_s`; None when the deadline is over."""
    now = asyncio.get_running_loop().time()
    left_s = interval_s if deadline is None else max(deadline - now, 0.0)
    try:
        return await asyncio.wait_for(queue.get(), min(interval_s, left_s))
    except TimeoutError:
        if deadline is not None and asyncio.get_running_loop().time() >= deadline:
            return None
        return _Event(event=Oneof("keepalive", _Event.KeepAlive()))


def box_of(boxes: Boxes, ctx: Any) -> Box:
    """The running sandbox that a request is about. Raises ConnectError as E2B's proxy answers."""
    box = boxes.running(ctx.request_headers.get("e2b-sandbox-id") or "")
    if box is None:
        raise ConnectError(Code.UNAVAILABLE, GONE)
    return box


def user_of(ctx: Any) -> str | None:
    """Who is to run the command; None: the backend's unprivileged user."""
    kind, _, value = (ctx.request_headers.get("authorization") or "").partition(" ")
    name = base64.b64decode(value).decode().partition(":")[0] if kind.lower() == "basic" else ""
    return None if name in ("", DEFAULT_USER) else name


def resolve(box: Box, path: str) -> str:
    """An absolute path; relative ones, and `~`, begin in the sandbox's working directory."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return posixpath.normpath(posixpath.join(box.home, path))


def rpc_error(error: SandboxError, user: str | None = None) -> ConnectError:
    """Our errors -> what E2B's service answers."""
    if isinstance(error, SandboxDead):
        return ConnectError(Code.UNAVAILABLE, GONE)
    if isinstance(error, SandboxUnsupported) and user is not None:
        return ConnectError(Code.UNAUTHENTICATED, f"invalid username: {user!r}: {error}")
    if isinstance(error, SandboxUnsupported):
        return ConnectError(Code.UNIMPLEMENTED, str(error))
    return ConnectError(Code.INTERNAL, str(error))
