"""One running container: created, attached to, started, and what became of it. On the io thread only.

The daemon removes it (`auto_remove`) as soon as its process 1 ends, and that ends when the owner's connection
does, however the owner came to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vime_agents.errors import (
    SandboxDead,
    SandboxError,
    SandboxNotReady,
    SandboxOutOfMemory,
    SandboxTimeout,
    SandboxUnreachable,
    SandboxUnsupported,
)
from vime_agents.sandbox import ExecResult, SandboxProcess, SandboxSpec
from vime_sandboxes import docker_container, docker_exec, docker_runner
from vime_sandboxes.docker_container import Image
from vime_sandboxes.docker_engine import ApiError, Engine
from vime_sandboxes.docker_remove import Remover
from vime_sandboxes.docker_runner import NO_PYTHON
from vime_sandboxes.docker_shell import ShellLink
from vime_sandboxes.docker_stream import Stream
from vime_sandboxes.docker_supervisor import ExecSupervisor, supervisor_source

MOVED = "-until-"
"""Between a sandbox's id and the time that its end was moved to, in the name of its container."""
_EVENTS_TIMEOUT_S = 2.0
_POLL_S = 0.02
READY_TIMEOUT_S = 60.0
_OOM_FILES = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
_MAX_CGROUP_FILE = 1 << 16


class Link(Protocol):
    """What speaks to the inside: a runner, or a shell and execs of the daemon's."""

    async def ready(self) -> None:
        """Wait until it can be used. Raises SandboxDead."""
        ...

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float,
        max_output: int,
    ) -> ExecResult:
        """As `Sandbox.exec`."""
        ...

    async def spawn(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, timeout_s: float | None
    ) -> SandboxProcess:
        """As `Sandbox.spawn`."""
        ...

    async def read(self, path: str, max_bytes: int) -> bytes:
        """As `Sandbox.read`."""
        ...

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """As `Sandbox.write`."""
        ...

    async def ping(self) -> None:
        """Raise SandboxDead unless it answers."""
        ...

    async def extend(self, ttl_s: float) -> None:
        """As `Sandbox.extend`."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Box:
    """A container with a link to its inside."""

    def __init__(self, engine: Engine, remover: Remover, name: str, container: str, link: Link) -> None:
        self.link = link
        self.container = container
        self._engine, self._remover, self._name = engine, remover, name
        self._started = time.time()
        self._closed = False
        self._oom_kills = 0
        self._end: SandboxError | None = None

    async def close(self) -> None:
        """Remove it. Bounded in time; never raises."""
        self._closed = True
        self.link.close()
        self._engine.end_streams(self.container)
        await self._remover.remove(self.container)

    async def spawn_as(
        self,
        user: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        timeout_s: float | None,
    ) -> docker_exec.ExecProcess:
        """As `Sandbox.spawn`, as somebody else than the sandbox's own user."""
        supervisor = ExecSupervisor(self._engine, self.container, user, self.link.ping)
        return await docker_exec.start(
            self._engine,
            self.container,
            supervisor,
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
        )

    async def extend(self, ttl_s: float, expires_at: float) -> None:
        """Move its end, and let others see it: of a container that runs, only the name can be changed."""
        await self.link.extend(ttl_s)
        name = f"{self._name}{MOVED}{expires_at:.0f}"
        await self._engine.call(f"extending {self._name}", lambda client: client.rename(self.container, name))

    async def new_oom_kills(self) -> bool:
        """Whether memory ran out since the last call."""
        before, self._oom_kills = self._oom_kills, await self.oom_kills()
        return self._oom_kills > before

    async def oom_kills(self) -> int:
        """Processes that were killed because memory ran out."""
        for path in _OOM_FILES:
            try:
                text = await self.link.read(path, _MAX_CGROUP_FILE)
            except SandboxDead:
                raise
            except SandboxError:  # the other version of control groups, or a runtime without any
                continue
            pairs = (line.split() for line in text.decode().splitlines())
            return next((int(pair[1]) for pair in pairs if pair[0] == "oom_kill"), 0)
        return 0

    async def stats(self) -> dict[str, Any]:
        """What the daemon counts of it."""
        return await self._engine.call(
            "counting", lambda client: client.stats(self.container, stream=False, one_shot=True)
        )

    async def exit_code(self) -> int | None:
        """How its process 1 ended; None when that is not known."""
        codes = _exit_codes(await self._events())
        return int(codes[-1]) if codes else None

    async def diagnose(self, reason: str) -> SandboxError:
        """Why it does not answer any more."""
        if self._closed:
            return SandboxDead(f"sandbox {self._name} is closed")
        if self._end is None:
            self._end = await self._look(reason)
            self.link.close()
            self._engine.end_streams(self.container)
            await self._remover.remove(self.container)
        return type(self._end)(str(self._end))

    async def _look(self, reason: str) -> SandboxError:
        who = f"sandbox {self._name}"
        text = f"{who} is gone: {reason}"
        try:
            events = await self._events()
        except SandboxError as error:
            return SandboxUnreachable(
                f"the connection to {who} broke, and whether it lives is not known: {error}"
            )
        codes = _exit_codes(events)
        if any(e.get("Action") == "oom" for e in events) and "137" in codes:
            return SandboxOutOfMemory(f"{text}; memory ran out")
        return SandboxDead(f"{text}; its process 1 ended with status {codes[-1]}" if codes else text)

    async def _events(self) -> list[dict[str, Any]]:
        """What the daemon remembers of it; waits a little for the end of its process 1 to be among that."""

        def read(client: Any) -> list[dict[str, Any]]:
            span = {"since": f"{self._started - 60:.9f}", "until": f"{time.time():.9f}"}
            return list(client.events(**span, filters={"container": self.container}, decode=True))

        found: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(_EVENTS_TIMEOUT_S):
                while not _exit_codes(found):
                    found = await self._engine.call("what happened", read)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:  # it still runs, or the daemon's clock is behind ours
            return found
        return found


def _exit_codes(events: Sequence[Mapping[str, Any]]) -> list[str]:
    return [e["Actor"]["Attributes"].get("exitCode", "0") for e in events if e.get("Action") == "die"]


async def start_box(
    engine: Engine,
    remover: Remover,
    spec: SandboxSpec,
    image: Image,
    name: str,
    labels: Mapping[str, str],
    ttl_s: float,
) -> Box:
    """A container whose process 1 answers, and ends in `ttl_s` seconds.

    Raises:
        SandboxNotReady: it does not start. SandboxTimeout: it does not answer. Either way nothing is left.
    """
    if image.id not in _WITHOUT_PYTHON:
        try:
            return await _start_box(engine, remover, spec, image, name, labels, ttl_s, python=True)
        except _NoPython:
            _WITHOUT_PYTHON.add(image.id)
    return await _start_box(engine, remover, spec, image, name, labels, ttl_s, python=False)


class _NoPython(Exception):
    """The image has none, or one that is too old."""


_WITHOUT_PYTHON: set[str] = set()
"""Ids of images."""


async def _start_box(
    engine: Engine,
    remover: Remover,
    spec: SandboxSpec,
    image: Image,
    name: str,
    labels: Mapping[str, str],
    ttl_s: float,
    *,
    python: bool,
) -> Box:
    shell = ["sh", "-c", supervisor_source()]
    command = docker_container.runner_command(spec, ttl_s) if python else shell
    creating = asyncio.ensure_future(
        engine.call(
            f"creating sandbox {name}",
            lambda client: docker_container.create(client, spec, image, name, command, labels, engine.info),
        )
    )
    stream: Stream | None = None
    try:
        container = await asyncio.shield(creating)
        stream = await engine.stream(
            f"attaching to {name}", f"/containers/{container}/attach?stdin=1&stdout=1&stderr=1&stream=1"
        )
        await _start_container(engine, container, image, python=python)
        user = spec.user or docker_container.DEFAULT_USER
        link = docker_runner.link(stream) if python else ShellLink(engine, container, stream, user, ttl_s)
        box = Box(engine, remover, name, container, link)
        await _wait_until_ready(box, image, python=python)
        return box
    except BaseException:
        if stream is not None:
            stream.close()
        await asyncio.shield(asyncio.ensure_future(remover.remove(name, creating)))
        raise


async def _start_container(engine: Engine, container: str, image: Image, *, python: bool) -> None:
    try:
        await engine.call(f"starting {image.name}", lambda client: client.start(container))
    except ApiError as error:
        if "executable file not found" in str(error) or "no such file or directory" in str(error):
            if python:
                raise _NoPython from error
            raise SandboxNotReady(f"image {image.name} has neither python3 nor sh; it needs one") from error
        if docker_exec.UNKNOWN_USER in str(error):
            raise SandboxUnsupported(f"image {image.name} does not know SandboxSpec.user: {error}") from error
        raise SandboxNotReady(f"a container of image {image.name} does not start: {error}") from error


async def _wait_until_ready(box: Box, image: Image, *, python: bool) -> None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await box.link.ready()
    except TimeoutError as error:
        raise SandboxTimeout(
            f"a container of image {image.name} was not ready in {READY_TIMEOUT_S:g} s",
            limit="start",
            limit_s=READY_TIMEOUT_S,
            elapsed_s=READY_TIMEOUT_S,
        ) from error
    except SandboxDead as error:
        if python and await box.exit_code() == NO_PYTHON:
            raise _NoPython from error
        raise SandboxNotReady(f"a container of image {image.name} ended at once: {error}") from error
