"""Start and end the bubblewrap process of one sandbox. Runs on the input/output thread only.

Nothing outlives this process: the runner watches it, and bubblewrap ends with the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from functools import cache

from vime_agents.errors import SandboxDead, SandboxUnavailable, SandboxUnsupported
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import limits, local_marks, profile, runner_bundle, seccomp, thread_user
from vime_sandboxes.runner_frames import CHUNK
from vime_sandboxes.runner_link import RunnerLink

CLOSE_TIMEOUT_S = 5.0


@cache
def _interpreter() -> profile.Interpreter:
    return profile.find_interpreter()


class BoxProcess:
    """bubblewrap, the process 1 inside it, and the limits around both."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, errors: int) -> None:
        self.channel = channel
        self.group = limits.ControlGroup({})
        self.uid: int | None = None
        self._limiting: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._process = process
        self._errors = errors
        self._exit = os.pidfd_open(process.pid)
        self._inner: int | None = None

    @property
    def pid(self) -> int:
        """The process outside."""
        return self._process.pid

    def adopt(self, inner_pid: int) -> None:
        """Hold on to process 1 of the inside, by a handle that cannot come to mean another process."""
        with contextlib.suppress(ProcessLookupError):  # it could not start: the silent channel will tell
            self._inner = os.pidfd_open(inner_pid)

    def limit(self, spec: SandboxSpec, inner_pid: int) -> None:
        """Begin to put the inside under its limits: the kernel takes as long for that as Python to start.

        Nothing but the runner runs there before `limited` returns.
        """
        self._limiting = asyncio.get_running_loop().run_in_executor(None, _limit, spec, self, inner_pid)

    async def limited(self) -> None:
        """Wait until the limits hold. Raises SandboxUnsupported: one cannot be enforced here."""
        if self._limiting is not None:
            await asyncio.shield(self._limiting)

    def enforced(self, spec: SandboxSpec) -> frozenset[str]:
        """Which limits hold."""
        found = {"filesystem", "file_size", "open_files", "processes", "disk", "ttl"}
        found.add("memory" if "memory" in self.group.controllers else "memory_per_process")
        found |= {"syscalls"} if seccomp.program() is not None else set()
        found |= {"cpus"} if spec.cpus is not None else set()
        return frozenset(found if spec.network is True else found | {"network"})

    def kill(self) -> None:
        """End everything inside at once."""
        # Not the process outside: killing that one leaves its child to be reaped by the machine's process 1.
        target = self._exit if self._inner is None else self._inner
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(target, signal.SIGKILL)

    async def connect(self, on_lost: Callable[[str], str | SandboxDead]) -> RunnerLink:
        """The link to the runner inside."""
        reader, writer = await asyncio.open_unix_connection(sock=self.channel, limit=CHUNK)
        self._transport = writer.transport
        return RunnerLink(reader, writer, on_lost)

    def error_text(self) -> str:
        """What bubblewrap or the runner complained about."""
        return os.pread(self._errors, 4096, 0).decode(errors="replace").strip()

    async def end(self) -> None:
        """Kill it, wait, and give everything back. Bounded in time."""
        self.kill()
        if self._transport is not None:
            # Not `close`, which waits until all is sent that was written: nobody reads it any more.
            self._transport.abort()
        if not await _readable(self._exit, CLOSE_TIMEOUT_S):
            self._process.kill()
            await _readable(self._exit, CLOSE_TIMEOUT_S)
        self._process.poll()
        if self._limiting is not None:  # what it makes is removed below
            await asyncio.wait([self._limiting])
        self.channel.close()
        for fd in (self._errors, self._exit, *([] if self._inner is None else [self._inner])):
            os.close(fd)
        for pause_s in (0.001, 0.01, 0.1, 0.5):
            if self.group.remove():
                break
            await asyncio.sleep(pause_s)
        if self.uid is not None:
            limits.give_uid_back(self.uid)


async def start(spec: SandboxSpec, sandbox_id: str, labels: Mapping[str, str]) -> BoxProcess:
    """Start bubblewrap, and the runner in it; nothing else may be started there before `limited`.

    Raises:
        SandboxUnavailable: bubblewrap does not work here.
    """
    info_read, info_write = os.pipe()
    refused = seccomp.program()
    fds = profile.Descriptors(
        info=info_write,
        runner=_memory_file(runner_bundle.compiled()),
        passwd=_memory_file(profile.PASSWD),
        group=_memory_file(profile.GROUP),
        owner=os.pidfd_open(os.getpid()),
        seccomp=None if refused is None else _memory_file(refused),
    )
    try:
        # Also the other end of `info`: if we die now, bubblewrap must not die of writing there, because then
        # its inner process would wait for it for ever.
        passed = (*fds.all(), info_read)
        box = _spawn(spec, local_marks.mark("local", sandbox_id, labels), fds, passed)
    except BaseException:
        os.close(info_read)
        raise
    finally:
        for fd in fds.all():
            os.close(fd)
    try:
        info = await _read_to_end(info_read)
        if not info.strip():
            raise SandboxUnavailable(
                f"bubblewrap does not work here: {box.error_text()}. {profile.ALTERNATIVES}"
            )
        inner_pid = int(json.loads(info)["child-pid"])
        box.adopt(inner_pid)
        box.limit(spec, inner_pid)
    except BaseException:
        await asyncio.shield(box.end())
        raise
    return box


def _spawn(spec: SandboxSpec, mark: str, fds: profile.Descriptors, passed: tuple[int, ...]) -> BoxProcess:
    bwrap, python = profile.find_bwrap(), _interpreter()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    errors = _memory_file(b"")
    # By their open files: the paths may lead through folders that only the owner can enter.
    program = os.open(bwrap, os.O_RDONLY)
    libraries = [os.open(library, os.O_RDONLY) for library in profile.bwrap_libraries(bwrap)]
    uid = limits.take_uid() if profile.is_root() else None
    by_thread = thread_user.possible()
    try:
        with contextlib.nullcontext() if uid is None or not by_thread else thread_user.thread_user(uid):
            process = subprocess.Popen(
                [mark, *profile.bwrap_arguments(spec, python, fds)],
                executable=f"/proc/self/fd/{program}",
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
                pass_fds=(*passed, program, *libraries),
                cwd="/",
                env={"LD_PRELOAD": ":".join(f"/proc/self/fd/{fd}" for fd in libraries)} if libraries else {},
                start_new_session=True,  # a Ctrl-C at the terminal is for the owner to handle
                user=None if by_thread else uid,
                group=None if by_thread else uid,
                extra_groups=None if by_thread or uid is None else [],
            )
    except OSError as error:
        ours.close()
        os.close(errors)
        if uid is not None:
            limits.give_uid_back(uid)
        raise SandboxUnavailable(f"cannot start {bwrap}: {error}. {profile.ALTERNATIVES}") from error
    finally:
        theirs.close()
        for fd in (program, *libraries):
            os.close(fd)
    box = BoxProcess(process, ours, errors)
    box.uid = uid
    return box


def _limit(spec: SandboxSpec, box: BoxProcess, inner_pid: int) -> None:
    _remove_orphans_once()
    box.group = limits.make_control_group(
        limits.group_name(),
        memory_mb=spec.memory_mb,
        max_processes=spec.max_processes,
        cpus=spec.cpus,
    )
    with contextlib.suppress(ProcessLookupError):  # it ended already, as above
        box.group.add(inner_pid)
    if "pids" not in box.group.controllers and box.uid is None and _kernel() < (5, 14):
        raise SandboxUnsupported(
            f"`max_processes` cannot be enforced: Linux {_kernel()} counts processes for each user, not for "
            "each sandbox. It takes Linux 5.14, a writable pids control group, or root."
        )

    if spec.cpus is not None and "cpu" not in box.group.controllers:
        raise SandboxUnsupported(
            f"`cpus={spec.cpus:g}` cannot be enforced: it takes a writable cpu control group: root, or a "
            "delegated group."
        )


@cache
def _remove_orphans_once() -> None:
    limits.remove_orphans()


@cache
def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("vime")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _read_to_end(fd: int) -> bytes:
    """Read a pipe to its end and close it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        return await reader.read()
    finally:
        transport.close()


async def _readable(fd: int, timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await asyncio.wait_for(ready, timeout_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
