"""One sandbox in a container; see `vime_agents.sandbox.Sandbox`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vime_agents.errors import SandboxDead, SandboxError
from vime_agents.sandbox import ExecResult, SandboxInfo, SandboxProcess, SandboxSpec, Snapshot
from vime_sandboxes import docker_container, docker_exec, docker_snapshot, egress, transfer
from vime_sandboxes.docker_box import Box
from vime_sandboxes.docker_container import Image
from vime_sandboxes.docker_engine import Engine
from vime_sandboxes.docker_remove import Remover
from vime_sandboxes.io_thread import on_io_thread, submit
from vime_sandboxes.runner_link import check_command
from vime_sandboxes.runner_process import started
from vime_sandboxes.spec_checks import check_setup

_KILLED = 9
T = TypeVar("T")


class Maker(Protocol):
    """What a sandbox needs of its provider."""

    engine: Engine
    remover: Remover

    def marks(self, sandbox: DockerSandbox, name: str) -> dict[str, str]:
        """The labels of something that is made for `sandbox` and is called `name`."""
        ...

    async def start(self, sandbox: DockerSandbox, image: Image) -> Box:
        """A running container."""
        ...


class DockerSandbox:
    """One sandbox. Works from any event loop."""

    def __init__(
        self,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        name: str,
        maker: Maker,
        image: Image,
        on_close: Callable[[DockerSandbox], object],
    ) -> None:
        self.id = name
        self.spec = spec
        self.labels: Mapping[str, str] = dict(labels)
        self.enforced = docker_container.enforced(spec)
        self._maker, self._image, self._on_close = maker, image, on_close
        self._box: Box | None = None
        self._egress: egress.Egress | None = None
        self._closing: asyncio.Task[None] | None = None
        self._created = time.time()
        self.expires_at = self._created + spec.ttl_s
        """Unix time, seconds."""

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
        """Run a program to its end; see the protocol. `stdin` is of at most 16 MiB."""
        check_command(command, stdin)

        async def run(box: Box) -> ExecResult:
            folder = cwd or docker_container.WORKDIR
            if self._is_own(user):
                result = await box.link.exec(
                    command,
                    stdin=stdin,
                    env=env or {},
                    cwd=folder,
                    timeout_s=timeout_s,
                    max_output=max_output,
                )
            else:
                process = await box.spawn_as(
                    user or "", command, env=env or {}, cwd=folder, timeout_s=timeout_s
                )
                result = await docker_exec.run(process, stdin, max_output)
            killed = _KILLED in (result.signal, (result.exit_code or 0) - 128)
            if killed and not result.timed_out and await box.new_oom_kills():
                return replace(result, oom_killed=True)
            return result

        return await self._with_box(run)

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> SandboxProcess:
        """Start a program and leave it running; see the protocol."""
        check_command(command)
        folder = cwd or docker_container.WORKDIR

        async def start(box: Box) -> SandboxProcess:
            if self._is_own(user):
                return await box.link.spawn(command, env=env or {}, cwd=folder, timeout_s=timeout_s)
            return await box.spawn_as(user or "", command, env=env or {}, cwd=folder, timeout_s=timeout_s)

        return await started(self._ask(start))

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:
        """A file's content; see the protocol."""
        return await self._with_box(lambda box: box.link.read(path, max_bytes))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, making its folders; see the protocol."""
        await self._with_box(lambda box: box.link.write(path, data, mode))

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or a folder's content in; see the protocol."""
        await transfer.upload(self, source, target)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:
        """Copy a file or a folder's content out; see the protocol."""
        await transfer.download(self, source, target, max_bytes=max_bytes)

    async def snapshot(self) -> Snapshot:
        """Keep the working directory and the image as they are; /tmp and /dev/shm are not part of it."""
        marks = self._maker.marks(self, f"{self.id}-snapshot")
        return await docker_snapshot.take(self._maker.engine, self._maker.remover, self, self._image, marks)

    async def restore(self, snapshot: Snapshot) -> None:
        """Put the files back to what `snapshot` holds, in a new container of the same name."""
        image = await on_io_thread(docker_snapshot.find(self._maker.engine, snapshot))
        await asyncio.shield(asyncio.wrap_future(submit(self._renew(image))))
        await docker_snapshot.unpack(self)

    async def extend(self, ttl_s: float) -> None:
        """Let it end `ttl_s` seconds from now."""
        expires_at = time.time() + ttl_s
        await self._with_box(lambda box: box.extend(ttl_s, expires_at))
        self.expires_at = expires_at

    async def info(self) -> SandboxInfo:
        """What it is and what it used."""
        return await self._with_box(self._info)

    async def alive(self) -> bool:
        """Whether it still answers."""
        try:
            await self._with_box(lambda box: box.link.ping())
        except SandboxError:
            return False
        return True

    async def close(self) -> None:
        """End it and everything in it. Goes on in the background when the caller is cancelled."""
        await asyncio.shield(asyncio.wrap_future(submit(self._close())))

    # ------------------------------------------------------------------------- on the io thread only

    async def open(self) -> None:
        """Start its container."""
        box = await self._maker.start(self, self._image)
        if self._closing is not None:
            await box.close()
            raise SandboxDead(f"sandbox {self.id} is gone: it was closed while it was restored")
        self._box = box

    async def open_way_out(self) -> None:
        """Let it reach the hosts that `SandboxSpec.network` lists, if it lists any."""
        if isinstance(self.spec.network, tuple):
            self._egress = await egress.start(self, self.spec.network)

    async def _renew(self, image: Image) -> None:
        await self._close_box()
        self._image = image
        await self.open()
        await self.open_way_out()

    async def _close_box(self) -> None:
        if self._box is not None:
            await self._box.close()
        way_out, self._egress = self._egress, None
        if way_out is not None:
            await way_out.aclose()

    async def prepare(self) -> None:
        """Write the spec's files and run its setup. Raises SandboxNotReady when a command of it fails."""
        for path, text in self.spec.files.items():
            await self.write(path, text.encode())
        for command in self.spec.setup:
            result = await self.exec(command, timeout_s=self.spec.ttl_s)
            check_setup(command, result)

    async def _with_box(self, use: Callable[[Box], Coroutine[Any, Any, T]]) -> T:
        return await on_io_thread(self._ask(use))

    async def _ask(self, use: Callable[[Box], Coroutine[Any, Any, T]]) -> T:
        box = self._box
        if box is None:
            raise SandboxDead(f"sandbox {self.id} is closed")
        try:
            return await use(box)
        except SandboxDead as error:
            raise await box.diagnose(str(error)) from error

    def _is_own(self, user: str | None) -> bool:
        return user in (None, self.spec.user or docker_container.DEFAULT_USER)

    async def _info(self, box: Box) -> SandboxInfo:
        seen = await box.stats()
        memory, cpu = seen.get("memory_stats", {}), seen.get("cpu_stats", {}).get("cpu_usage", {})
        pids = seen.get("pids_stats", {}).get("current")
        return SandboxInfo(
            id=self.id,
            backend="docker",
            labels=self.labels,
            created_at=self._created,
            expires_at=self.expires_at,
            memory_peak_bytes=memory.get("max_usage"),
            cpu_s=cpu["total_usage"] / 1e9 if "total_usage" in cpu else None,
            processes=None if pids is None else pids - 1,  # process 1 is ours
            oom_kills=await box.oom_kills(),
        )

    async def _close(self) -> None:
        self._closing = self._closing or asyncio.ensure_future(self._end())
        await asyncio.shield(self._closing)

    async def _end(self) -> None:
        await self._close_box()
        self._on_close(self)
