"""One local sandbox; see `vime_agents.sandbox.Sandbox`. Works from any event loop."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from vime_agents.errors import (
    SandboxDead,
    SandboxDiskFull,
    SandboxNotReady,
    SandboxOutOfMemory,
    SandboxTimeout,
    SandboxUnavailable,
    SandboxUnsupported,
)
from vime_agents.sandbox import ExecResult, Sandbox, SandboxInfo, SandboxSpec, Snapshot
from vime_sandboxes import egress, local_snapshot, process, profile, transfer
from vime_sandboxes.io_thread import on_io_thread, submit
from vime_sandboxes.runner_link import RunnerLink, check_command
from vime_sandboxes.runner_process import RunnerProcess, started
from vime_sandboxes.spec_checks import check_setup

START_TIMEOUT_S = 60.0
SETUP_TIMEOUT_S = 600.0
"""For each command of `SandboxSpec.setup`."""
T = TypeVar("T")


class LocalSandbox:
    """A bubblewrap with a runner inside, or the successor that `restore` put in its place."""

    backend = "local"

    def __init__(
        self, spec: SandboxSpec, labels: Mapping[str, str], on_release: Callable[[LocalSandbox], object]
    ) -> None:
        self.id = f"{self.backend}-{secrets.token_hex(6)}"
        self.workdir = profile.WORKDIR
        self.spec = spec
        self.labels: Mapping[str, str] = dict(labels)
        self.enforced: frozenset[str] = frozenset()
        self._created_at = time.time()
        self._expires_at = self._created_at + spec.ttl_s
        self._on_release = on_release
        self._box: process.BoxProcess | None = None
        self._link: RunnerLink | None = None
        self._oom_kills = 0
        self._release_task: asyncio.Task[None] | None = None
        self._closed = False
        """By somebody, whereas a release may have other reasons."""
        self._restoring = asyncio.Lock()
        self._egress: egress.Egress | None = None

    # ---------------------------------------------------------------------- what everybody may call

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """Run a program to its end; see the protocol. `stdin` is a file of at most 16 MiB."""
        check_command(command, stdin)
        self._check_user(user)

        async def run(link: RunnerLink) -> ExecResult:
            result = await link.exec(
                command,
                stdin=stdin,
                env=env or {},
                cwd=cwd or self.workdir,
                timeout_s=timeout_s,
                max_output=max_output,
            )
            killed = result.signal == 9 or result.exit_code == 128 + 9
            if killed and not result.timed_out and self._new_oom_kills():
                return replace(result, oom_killed=True)
            return result

        return await on_io_thread(self._with_link(run))

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> RunnerProcess:
        """Start a program and leave it running; see the protocol."""
        check_command(command)
        self._check_user(user)
        folder = cwd or self.workdir
        return await started(
            self._with_link(lambda link: link.spawn(command, env=env or {}, cwd=folder, timeout_s=timeout_s))
        )

    async def spawn_on(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None
    ) -> RunnerProcess:
        """Start a program with open files of this process as its standard streams; close them when you like.

        What goes through them does not go through `write` and `output`, and is not counted in `wait`.
        """
        files = {stream: os.dup(fd) for stream, fd in _files(stdin, stdout).items()}

        async def start() -> RunnerProcess:
            try:
                return await self._with_link(
                    lambda link: link.spawn(command, env={}, cwd=self.workdir, timeout_s=None, files=files)
                )
            finally:
                for fd in files.values():
                    os.close(fd)

        return await started(start())

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:
        """A file's content; see the protocol."""
        return await on_io_thread(self._with_link(lambda link: link.read(path, max_bytes)))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its folders; see the protocol."""
        if len(data) > self.spec.max_file_mb << 20:
            raise SandboxDiskFull(f"{path}: {len(data)} bytes; max_file_mb is {self.spec.max_file_mb}")
        await on_io_thread(self._with_link(lambda link: link.write(path, data, mode)))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or a folder's content in; see the protocol."""
        await transfer.upload(self, source, target)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file or a folder's content out; see the protocol."""
        await transfer.download(self, source, target, max_bytes=max_bytes)

    async def snapshot(self) -> Snapshot:
        """Keep the working directory as it is now, in a file of this machine that `delete_snapshot` removes.

        It is removed, too, once this process has ended.
        """
        return await local_snapshot.take(self, self.workdir)

    async def restore(self, snapshot: Snapshot) -> None:
        """Put the files back to what `snapshot` holds, in a new box: nothing else of the old one is left.

        Commands that were under way raise SandboxDead.
        """
        file = local_snapshot.find(snapshot)
        await asyncio.shield(asyncio.wrap_future(submit(self._restore(file))))

    async def extend(self, ttl_s: float) -> None:
        """Let it end `ttl_s` seconds from now."""
        await on_io_thread(self._with_link(lambda link: link.extend(ttl_s)))
        self._expires_at = time.time() + ttl_s

    async def info(self) -> SandboxInfo:
        """What it is and what it used; what no control group counts here is None."""
        await on_io_thread(self._with_link(RunnerLink.ping))
        assert self._box is not None
        usage = self._box.group.usage()
        return SandboxInfo(
            id=self.id,
            backend=self.backend,
            labels=self.labels,
            created_at=self._created_at,
            expires_at=self._expires_at,
            memory_peak_bytes=usage.memory_peak_bytes,
            cpu_s=usage.cpu_s,
            processes=usage.processes,
            oom_kills=self._box.group.oom_kills() if "memory" in self._box.group.controllers else None,
        )

    async def alive(self) -> bool:
        """Whether it still answers."""
        try:
            await on_io_thread(self._with_link(RunnerLink.ping))
        except (SandboxDead, SandboxTimeout):
            return False
        return True

    async def close(self) -> None:
        """End it and everything in it. Goes on in the background when the caller is cancelled."""
        await asyncio.shield(asyncio.wrap_future(submit(self.release())))

    # ------------------------------------------------------------------------- on the io thread only

    async def open(self, snapshot: Path | None) -> None:
        """Start it, and put in what it begins with. When that fails, nothing is left."""
        try:
            await self._start()
            if isinstance(self.spec.network, tuple):
                self._egress = await egress.start(self, self.spec.network)
            if snapshot is not None:
                await transfer.unpack(self, snapshot, self.workdir)
                return
            for path, text in self.spec.files.items():
                await self.write(path, text.encode())
            for command in self.spec.setup:
                await self._set_up(command)
        except BaseException:
            await asyncio.shield(self.release())
            raise

    async def release(self) -> None:
        """End it. What is under way raises SandboxDead."""
        self._closed = True
        self._release_task = self._release_task or asyncio.ensure_future(self._end())
        await asyncio.shield(self._release_task)

    async def _start(self) -> None:
        ttl_s = self._expires_at - time.time()
        if ttl_s <= 0:
            raise SandboxDead(f"sandbox {self.id} is gone: its time to live is over")
        started = time.monotonic()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                box = await self._start_box(replace(self.spec, ttl_s=ttl_s))
                if self._closed:
                    await box.end()
                    raise SandboxDead(f"sandbox {self.id} is gone: it was closed while it was restored")
                self._box, self._oom_kills = box, 0
                self._link = await box.connect(lambda reason: self._lost(box, reason))
                await self._ready(box, self._link)
                await box.limited()
        except TimeoutError as error:
            raise SandboxTimeout(
                f"no sandbox within {START_TIMEOUT_S:g} s",
                limit="start",
                limit_s=START_TIMEOUT_S,
                elapsed_s=time.monotonic() - started,
            ) from error
        self.enforced = box.enforced(self.spec)

    async def _start_box(self, spec: SandboxSpec) -> process.BoxProcess:
        return await process.start(spec, self.id, self.labels)

    async def _ready(self, box: process.BoxProcess, link: RunnerLink) -> None:
        try:
            await link.ready()
        except SandboxDead as error:
            if self._closed:
                raise
            text = f"the runner did not start in the sandbox: {error}"
            if box.error_text():
                raise SandboxUnavailable(f"{text}. {profile.ALTERNATIVES}") from error
            raise SandboxNotReady(text) from error

    async def _set_up(self, command: Sequence[str]) -> None:
        result = await self.exec(command, timeout_s=min(SETUP_TIMEOUT_S, self.spec.ttl_s))
        check_setup(command, result)

    async def _with_link(self, use: Callable[[RunnerLink], Coroutine[Any, Any, T]]) -> T:
        async with self._restoring:
            link = self._link
        if link is None:
            raise SandboxDead(f"sandbox {self.id} is closed")
        try:
            return await use(link)
        except SandboxTimeout:
            await self.release()  # whatever it says later cannot be trusted
            raise

    def _check_user(self, user: str | None) -> None:
        if user not in (None, profile.USER, str(profile.INNER_ID)):
            raise SandboxUnsupported(
                f"the local backend runs commands as {profile.USER!r} ({profile.INNER_ID}), not as {user!r}"
            )

    def _new_oom_kills(self) -> bool:
        if self._box is None:
            return False
        before, self._oom_kills = self._oom_kills, self._box.group.oom_kills()
        return self._oom_kills > before

    def _lost(self, box: process.BoxProcess, reason: str) -> SandboxDead:
        details = [f"sandbox {self.id} is gone: {reason}"]
        kills, known = box.group.oom_kills(), self._oom_kills
        if kills:
            details.append(f"{kills} processes were killed for lack of memory ({self.spec.memory_mb} MB)")
        if text := box.error_text():
            details.append(text)
        if box is self._box:
            self._release_task = self._release_task or asyncio.ensure_future(self._end())
        # The runner is the last that memory is taken from.
        kind = SandboxOutOfMemory if kills > known and "killed" in reason else SandboxDead
        return kind("; ".join(details))

    async def _restore(self, snapshot: Path) -> None:
        async with self._restoring:
            if self._release_task is not None:
                raise self._link.lost if self._link and self._link.lost else SandboxDead(self.id)
            await self._drop_box("it was restored to a snapshot")
            try:
                await self._start()
                assert self._link is not None
                await transfer.unpack(cast(Sandbox, _Inside(self._link)), snapshot, self.workdir)
            except BaseException:
                await asyncio.shield(self.release())
                raise

    async def _drop_box(self, reason: str) -> None:
        box, link = self._box, self._link
        self._box = None
        if link is not None:
            link.connection.close(reason)
        if box is not None:
            await box.end()

    async def _end(self) -> None:
        try:
            await self._drop_box("it was closed")
            if self._egress is not None:
                await self._egress.aclose()
        finally:
            self._on_release(self)


class _Inside:
    """What `transfer` needs of a sandbox, while the sandbox itself is closed to others."""

    def __init__(self, link: RunnerLink) -> None:
        self._link = link

    async def spawn_on(
        self, command: Sequence[str], *, stdin: int | None = None, stdout: int | None = None
    ) -> RunnerProcess:
        """Start a program with open files of this process as its standard streams."""
        files = _files(stdin, stdout)
        return await self._link.spawn(command, env={}, cwd=".", timeout_s=None, files=files)


def _files(stdin: int | None, stdout: int | None) -> dict[int, int]:
    return {stream: fd for stream, fd in ((0, stdin), (1, stdout)) if fd is not None}
