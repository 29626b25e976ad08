"""Sandboxes in containers of a Docker daemon, or of Podman's socket; found by DOCKER_HOST.

What holds is in `Sandbox.enforced`. The containers share the host's kernel; `docker_container.py` says what
each is created with.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vime_agents.errors import SandboxUnsupported
from vime_agents.sandbox import SandboxInfo, SandboxSpec, Snapshot
from vime_sandboxes import docker_container
from vime_sandboxes.docker_box import Box, start_box
from vime_sandboxes.docker_engine import Engine
from vime_sandboxes.docker_image import find_image
from vime_sandboxes.docker_remove import Remover, remove_container
from vime_sandboxes.docker_sandbox import DockerSandbox
from vime_sandboxes.io_thread import on_io_thread, submit

NAME_LABEL = "vime.sandbox"
"""Its value is the container's own name: a label alone could come with an image."""
OWNER_LABEL, EXPIRES_LABEL = "vime.owner", "vime.expires"
_STATES = {"created": "creating", "restarting": "running", "running": "running", "paused": "paused"}


class DockerSandboxProvider:
    """Makes Docker sandboxes; see `vime_agents.sandbox.SandboxProvider`."""

    name = "docker"

    def __init__(self) -> None:
        self._engine = Engine()
        self._remover = Remover(self._engine)
        self._open: dict[str, DockerSandbox] = {}
        self._creating: set[asyncio.Task[DockerSandbox]] = set()
        # More at once than this makes each of them slower, and the daemon does not get more done.
        self._slots = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def preflight(self) -> None:
        """Whether there is a daemon that answers. Raises SandboxUnavailable."""
        await on_io_thread(self._engine.call("asking for its version", lambda client: client.version()))

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> DockerSandbox:
        """A ready sandbox. When the caller is cancelled, what was begun is finished and removed."""
        future = submit(self._create(spec, labels or {}, snapshot))
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(lambda f: f.exception() is None and submit(f.result()._close()) and None)
            raise

    async def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox that vime-agents made on this daemon, of any owner."""
        return await on_io_thread(self._list())

    async def remove(self, sandbox_id: str) -> None:
        """End a sandbox of any owner. Idempotent."""
        await on_io_thread(remove_container(self._engine, sandbox_id))

    async def aclose(self) -> None:
        """Close everything that this provider made, and wait for what is being made."""
        await on_io_thread(self._close_all())

    # ------------------------------------------------------------------------- on the io thread only

    async def _create(
        self, spec: SandboxSpec, labels: Mapping[str, str], snapshot: Snapshot | None
    ) -> DockerSandbox:
        task = asyncio.current_task()
        assert task is not None
        self._creating.add(task)
        try:
            await self._engine.call("asking for its version", lambda client: client.ping())
            docker_container.check(spec, self._engine.info)
            if isinstance(spec.network, tuple):
                raise SandboxUnsupported("SandboxSpec.network: the Docker backend has no allow-list yet")
            image = await find_image(self._engine, spec)
            name = f"vime-{secrets.token_hex(8)}"

            async def start() -> Box:
                marks = {
                    **labels,
                    NAME_LABEL: name,
                    OWNER_LABEL: "",
                    EXPIRES_LABEL: f"{time.time() + spec.ttl_s:.0f}",
                }
                return await start_box(self._engine, self._remover, spec, image, name, marks)

            sandbox = DockerSandbox(
                spec, labels, name, self._engine, start, lambda s: self._open.pop(s.id, None)
            )
            async with self._slots:
                await sandbox._open()
            self._open[name] = sandbox
            try:
                await sandbox.prepare()
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(sandbox._close()))
                raise
            return sandbox
        finally:
            self._creating.discard(task)

    async def _list(self) -> list[SandboxInfo]:
        found = await self._engine.call(
            "listing sandboxes", lambda client: client.containers(all=True, filters={"label": NAME_LABEL})
        )
        return [info for container in found if (info := _info(container)) is not None]

    async def _close_all(self) -> None:
        await asyncio.gather(*self._creating, return_exceptions=True)
        await asyncio.gather(*(sandbox._close() for sandbox in list(self._open.values())))
        self._engine.close()


def _info(container: Mapping[str, Any]) -> SandboxInfo | None:
    labels = container.get("Labels") or {}
    name = labels.get(NAME_LABEL)
    if name is None or f"/{name}" not in container["Names"]:
        return None  # somebody's own container, of an image that was made of a sandbox
    expires = labels.get(EXPIRES_LABEL, "")
    return SandboxInfo(
        id=name,
        backend="docker",
        labels=labels,
        created_at=float(container["Created"]),
        expires_at=float(expires) if expires.isdigit() else None,
        state=_STATES.get(container["State"], "exited"),
    )
