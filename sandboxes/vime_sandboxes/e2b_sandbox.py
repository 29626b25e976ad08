"""One E2B sandbox: a runner inside does the work, E2B's service carries its bytes.

When only the connection to the runner breaks, the commands under way are lost (SandboxUnreachable) and their
programs are killed; the next command starts a new runner. When the runner itself ends, somebody inside ended
it: nothing that comes from there can be trusted any more, and the sandbox is ended.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from e2b import AsyncSandbox

from vime_agents.errors import (
    SandboxDead,
    SandboxError,
    SandboxNotReady,
    SandboxTimeout,
    SandboxUnreachable,
    SandboxUnsupported,
)
from vime_agents.sandbox import ExecResult, SandboxInfo, SandboxSpec, Snapshot
from vime_sandboxes import ownership, transfer
from vime_sandboxes.e2b_cloud import ID, MADE_BY, Cloud
from vime_sandboxes.e2b_errors import translated
from vime_sandboxes.e2b_link import Link
from vime_sandboxes.e2b_process import E2BProcess
from vime_sandboxes.io_thread import on_io_thread, submit
from vime_sandboxes.runner_link import check_command
from vime_sandboxes.runner_process import started
from vime_sandboxes.spec_checks import check_setup

T = TypeVar("T")
DEFAULT_TEMPLATE = "base"
PREPARATION_S = 120
"""Added to the time to live while a sandbox is being made ready, so that it does not end meanwhile."""
SETUP_TIMEOUT_S = 600.0
"""For each command of `SandboxSpec.setup`."""
_SHOWN_OUTPUT = 4096


class E2BSandbox:
    """See `vime_agents.sandbox.Sandbox`. Works from any event loop."""

    def __init__(
        self,
        cloud: Cloud,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        on_end: Callable[[E2BSandbox], object],
    ) -> None:
        self.id = labels.get(ID) or f"e2b-{secrets.token_hex(8)}"
        self.spec = spec
        self.labels: Mapping[str, str] = {**labels, ID: self.id}
        self.enforced: frozenset[str] = frozenset()
        self._cloud, self._on_end = cloud, on_end
        self._remote: AsyncSandbox | None = None
        self._links: dict[str | None, Link] = {}
        self._folder = ""
        """The working directory, once it is known."""
        self._oom_kills = 0
        self._changing = asyncio.Lock()
        """Held while a runner is started, or the machine replaced."""
        self._expires = 0.0
        self._gone: str | None = None
        """Why it is no more."""

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
        """Run a program to its end; see the protocol. Never repeated: it may have started."""
        check_command(command, stdin)

        async def run(link: Link) -> ExecResult:
            result = await link.exec(
                command,
                stdin=stdin,
                env=env or {},
                cwd=cwd or ".",
                timeout_s=timeout_s,
                max_output=max_output,
            )
            killed = result.signal == 9 or result.exit_code == 128 + 9
            if killed and not result.timed_out and await self._new_oom_kills(link):
                return replace(result, oom_killed=True)
            return result

        return await on_io_thread(self._call(run, user))

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> E2BProcess:
        """Start a program and leave it running; see the protocol."""
        check_command(command)

        async def run(link: Link) -> E2BProcess:
            program = await link.spawn(command, env=env or {}, cwd=cwd or ".", timeout_s=timeout_s)
            return E2BProcess(program, lambda error: on_io_thread(self._lost(link, error)))

        return await started(self._call(run, user))

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:
        """A file's content; see the protocol."""
        return await on_io_thread(self._call(lambda link: link.read(path, max_bytes)))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its folders; see the protocol."""
        await on_io_thread(self._call(lambda link: link.write(path, data, mode)))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or a folder's content into the sandbox; see the protocol."""
        await transfer.upload(self, source, target)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file or a folder's content out; see the protocol."""
        await transfer.download(self, source, target, max_bytes=max_bytes)

    async def snapshot(self) -> Snapshot:
        """Keep its file system; see the protocol."""
        snapshot_id = await on_io_thread(self._cloud.snapshot(self._alive().sandbox_id))
        return Snapshot(id=snapshot_id, spec=self.spec)

    async def restore(self, snapshot: Snapshot) -> None:
        """Become what `snapshot` holds: another sandbox of E2B's takes the place of this one.

        Commands that were under way raise SandboxDead. When it fails, the sandbox is ended.
        """
        await asyncio.shield(asyncio.wrap_future(submit(self._restore(snapshot))))

    async def extend(self, ttl_s: float) -> None:
        """Let it end `ttl_s` seconds from now, rounded up to whole ones."""
        await on_io_thread(self._extend(ttl_s))

    async def info(self) -> SandboxInfo:
        """What E2B says of it; the memory peak is the highest of E2B's samples."""
        return await on_io_thread(self._info())

    async def alive(self) -> bool:
        """Whether it still answers."""
        try:
            await on_io_thread(self._call(lambda link: link.ping()))
        except SandboxError:
            return False
        return True

    async def close(self) -> None:
        """End it. Goes on in the background when the caller is cancelled.

        Raises:
            SandboxError: E2B did not confirm its end; it then ends with its time to live.
        """
        await asyncio.shield(asyncio.wrap_future(submit(self.end())))

    # ------------------------------------------------------------------------- on the io thread only

    @classmethod
    async def make(
        cls,
        cloud: Cloud,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        snapshot: Snapshot | None,
        on_end: Callable[[E2BSandbox], object],
    ) -> E2BSandbox:
        """Create one and make it ready; what fails leaves nothing behind."""
        sandbox = cls(cloud, spec, labels, on_end)
        try:
            await sandbox._begin(snapshot.id if snapshot else spec.image or DEFAULT_TEMPLATE, snapshot)
            if snapshot is None:
                await sandbox._prepare()
            await sandbox._extend(spec.ttl_s)
        except BaseException as error:
            await asyncio.shield(sandbox.end())
            if isinstance(error, SandboxDead):
                raise SandboxNotReady(f"it ended before it was ready: {error}") from error
            raise
        return sandbox

    async def end(self) -> None:
        """End it. Raises SandboxError when E2B does not confirm that."""
        self._gone = self._gone or "it was closed"
        links, self._links = list(self._links.values()), {}
        try:
            if self._remote is not None:
                await self._cloud.kill(self._remote.sandbox_id)
                self._remote = None
        finally:
            for link in links:
                await link.end()
        self._on_end(self)

    async def _begin(self, template: str, snapshot: Snapshot | None) -> None:
        ttl_s = self.spec.ttl_s + PREPARATION_S
        metadata = {**self.labels, MADE_BY[0]: MADE_BY[1], ownership.OWNER: ownership.owner()}
        self._remote = await self._cloud.create(self.spec, template, metadata, ttl_s)
        info = await self._cloud.info(self._remote.sandbox_id)
        self.enforced = _enforced(self.spec, info.cpu_count, info.memory_mb)
        await self._connect(None, clean=snapshot is not None)

    async def _prepare(self) -> None:
        link = await self._link()
        for path, text in self.spec.files.items():
            await link.write(path, text.encode(), 0o644)
        for command in self.spec.setup:
            result = await self._run(link, command, timeout_s=min(SETUP_TIMEOUT_S, self.spec.ttl_s))
            check_setup(command, result)

    async def _link(self, user: str | None = None) -> Link:
        """The way to the runner of a user, who is the spec's when None; a new one when that broke."""
        async with self._changing:
            self._alive()
            old = self._links.get(user)
            if old is not None and old.lost is None:
                return old
            if old is not None:
                await old.end()
            return await self._connect(user, clean=old is not None)

    async def _connect(self, user: str | None, *, clean: bool) -> Link:
        with translated(f"starting a runner in {self.id}"):
            link = await Link.open(
                self._alive(), self.spec, user=user or self.spec.user, folder=self._folder, clean=clean
            )
        self._links[user] = link
        if not self._folder:
            self._folder = (await self._run(link, ["pwd"])).text.rstrip("\n")
            await self._new_oom_kills(link)
        return link

    async def _run(self, link: Link, command: Sequence[str], timeout_s: float = 30.0) -> ExecResult:
        return await link.exec(
            command, stdin=b"", env={}, cwd=".", timeout_s=timeout_s, max_output=_SHOWN_OUTPUT
        )

    async def _new_oom_kills(self, link: Link) -> bool:
        """Whether the machine's kernel has killed for lack of memory since the last call."""
        counted = await self._run(link, ["sed", "-n", "s/^oom_kill //p", "/proc/vmstat"])
        before, self._oom_kills = self._oom_kills, int(counted.text or 0)
        return self._oom_kills > before

    async def _call(self, run: Callable[[Link], Awaitable[T]], user: str | None = None) -> T:
        link = await self._link(user)
        try:
            return await run(link)
        except SandboxDead as error:
            raise await self._lost(link, error) from error
        except SandboxTimeout as error:
            # Whatever it says later cannot be trusted.
            self._gone = self._gone or str(error)
            await self.end()
            raise

    async def _lost(self, link: Link, error: SandboxDead) -> SandboxError:
        """Why the runner no longer answers."""
        remote = self._remote
        if link.dropped or self._gone or remote is None:
            return SandboxDead(f"sandbox {self.id} is gone: {link.dropped or self._gone}")
        if link.channel.ended is not None:
            self._gone = f"its runner was ended from inside: {link.channel.ended}"
            await self.end()
            return SandboxDead(f"sandbox {self.id} is gone: {self._gone}")
        try:
            with translated(f"asking {self.id}"):
                running = await remote.is_running(request_timeout=5.0)
        except SandboxError as problem:
            return SandboxUnreachable(f"sandbox {self.id} cannot be reached: {problem}")
        if running:
            return SandboxUnreachable(
                f"the connection to sandbox {self.id} broke ({link.channel.error or error}); "
                "what it was doing is lost"
            )
        self._gone = "it was killed, or its time to live is over"
        await self.end()
        return SandboxDead(f"sandbox {self.id} is gone: {self._gone}")

    async def _restore(self, snapshot: Snapshot) -> None:
        async with self._changing:
            old, links = self._alive(), list(self._links.values())
            left_s = max(1.0, self._expires - time.time())
            self._links, self._folder = {}, ""
            for link in links:
                link.dropped = "it was restored to a snapshot"
                await link.end()
            try:
                await self._begin(snapshot.id, snapshot)
                await self._extend(left_s)
            except BaseException:
                self._gone = self._gone or "restoring it failed"
                await self.end()
                raise
            finally:
                await self._cloud.kill(old.sandbox_id)

    async def _extend(self, ttl_s: float) -> None:
        await self._cloud.set_timeout(self._alive().sandbox_id, ttl_s)
        self._expires = time.time() + ttl_s

    async def _info(self) -> SandboxInfo:
        remote_id = self._alive().sandbox_id
        info, peak = await asyncio.gather(self._cloud.info(remote_id), self._cloud.memory_peak(remote_id))
        return SandboxInfo(
            id=self.id,
            backend="e2b",
            labels=self.labels,
            created_at=info.started_at.timestamp(),
            expires_at=info.end_at.timestamp(),
            state=info.state.value,
            memory_peak_bytes=peak,
        )

    def _alive(self) -> AsyncSandbox:
        if self._gone is not None or self._remote is None:
            raise SandboxDead(f"sandbox {self.id} is gone: {self._gone or 'it has no machine'}")
        return self._remote


def _enforced(spec: SandboxSpec, cpus: int, memory_mb: int) -> frozenset[str]:
    found = {"filesystem", "ttl", "file_size", "open_files", "processes", "memory_per_process"}
    if memory_mb <= spec.memory_mb:
        found.add("memory")
    if spec.cpus is not None:
        if cpus > spec.cpus:
            raise SandboxUnsupported(f"the template has {cpus} processors, the spec allows {spec.cpus:g}")
        found.add("cpus")
    if spec.network is not True:
        found.add("network")
    return frozenset(found)
