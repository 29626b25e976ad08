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

from vime_agents.sandbox import SandboxInfo, SandboxSpec, Snapshot
from vime_sandboxes import docker_container, ownership
from vime_sandboxes.docker_box import MOVED, Box, start_box
from vime_sandboxes.docker_container import Image
from vime_sandboxes.docker_engine import Engine
from vime_sandboxes.docker_image import find_image
from vime_sandboxes.docker_remove import Remover, remove_container
from vime_sandboxes.docker_sandbox import DockerSandbox
from vime_sandboxes.docker_snapshot import delete, find, unpack
from vime_sandboxes.io_thread import made, on_io_thread

NAME_LABEL = "vime.sandbox"
"""Its value is the container's own name: a label alone could come with an image."""
_STATES = {"created": "creating", "restarting": "running", "running": "running", "paused": "paused"}


class DockerSandboxProvider:
    """Makes Docker sandboxes; see `vime_agents.sandbox.SandboxProvider`."""

    name = "docker"

    def __init__(self) -> None:
        self.engine = Engine()
        self.remover = Remover(self.engine)
        self._open: dict[str, DockerSandbox] = {}
        self._creating: set[asyncio.Task[DockerSandbox]] = set()
        # More at once than this makes each of them slower, and the daemon does not get more done.
        self._slots = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def preflight(self) -> None:
        """Whether there is a daemon that answers. Raises SandboxUnavailable."""
        await on_io_thread(self.engine.call("asking for its version", lambda client: client.version()))

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> DockerSandbox:
        """A ready sandbox. When the caller is cancelled, what was begun is finished and removed.

        With a `snapshot`, the spec's files and setup are not repeated: the snapshot has what they made.
        """
        return await made(self._create(spec, labels or {}, snapshot), DockerSandbox.close)

    async def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox that vime-agents made on this daemon, of any owner."""
        return await on_io_thread(self._list())

    async def remove(self, sandbox_id: str) -> None:
        """End a sandbox of any owner. Idempotent."""
        await on_io_thread(self._remove(sandbox_id))

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Free what it takes. Idempotent."""
        await on_io_thread(delete(self.engine, snapshot.id))

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
            await self.engine.connect()
            docker_container.check(spec, self.engine.info)
            image = await (find_image(self.engine, spec) if snapshot is None else find(self.engine, snapshot))
            sandbox = DockerSandbox(
                spec,
                labels,
                f"vime-{secrets.token_hex(8)}",
                self,
                image,
                lambda closed: self._open.pop(closed.id, None),
            )
            async with self._slots:
                await sandbox.open()
            self._open[sandbox.id] = sandbox
            try:
                await sandbox.open_way_out()
                await (sandbox.prepare() if snapshot is None else unpack(sandbox))
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(sandbox.close()))
                raise
            return sandbox
        finally:
            self._creating.discard(task)

    def marks(self, sandbox: DockerSandbox, name: str) -> dict[str, str]:
        """The labels of something that is made for `sandbox` and is called `name`."""
        own = {
            NAME_LABEL: name,
            ownership.OWNER: ownership.owner(),
            ownership.EXPIRES: f"{sandbox.expires_at:.0f}",
        }
        return {**sandbox.labels, **own}

    async def start(self, sandbox: DockerSandbox, image: Image) -> Box:
        """A running container for `sandbox`."""
        marks = self.marks(sandbox, sandbox.id)
        ttl_s = sandbox.expires_at - time.time()
        return await start_box(self.engine, self.remover, sandbox.spec, image, sandbox.id, marks, ttl_s)

    async def _containers(self, label: str) -> Sequence[tuple[str, SandboxInfo]]:
        """Id and description of each container that is ours."""
        found = await self.engine.call(
            "listing sandboxes", lambda client: client.containers(all=True, filters={"label": label})
        )
        return [(c["Id"], info) for c in found if (info := _info(c)) is not None]

    async def _list(self) -> Sequence[SandboxInfo]:
        return [info for _, info in await self._containers(NAME_LABEL)]

    async def _remove(self, sandbox_id: str) -> None:
        for container, _ in await self._containers(f"{NAME_LABEL}={sandbox_id}"):
            await remove_container(self.engine, container)

    async def _close_all(self) -> None:
        await asyncio.gather(*self._creating, return_exceptions=True)
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))
        self.engine.close()


def _info(container: Mapping[str, Any]) -> SandboxInfo | None:
    labels = container.get("Labels") or {}
    name = labels.get(NAME_LABEL, "")
    own, until, moved = container["Names"][0].removeprefix("/").partition(MOVED)
    if own != name:
        return None  # somebody's own container, of an image that was made of a sandbox
    expires = moved if until else labels.get(ownership.EXPIRES, "")
    return SandboxInfo(
        id=name,
        backend="docker",
        labels=labels,
        created_at=float(container["Created"]),
        expires_at=float(expires) if expires.isdigit() else None,
        state=_STATES.get(container["State"], "exited"),
    )
