"""The sandboxes of one server: what E2B's control plane knows about them.

A box is made, may be paused (its files are kept, its sandbox is closed) and resumed, and ends when it is
killed, when its time is over, or with the server.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vime_agents.errors import ConfigError, SandboxError
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec, Snapshot

if TYPE_CHECKING:
    from vime_sandboxes.e2b_server.processes import Program

DEFAULT_TIMEOUT_S = 300
MAX_TIMEOUT_S = 24 * 3600
OWNER_GRACE_S = 60.0
"""How much longer than the box its sandbox may live by itself: the box's own timer is what ends it."""


class BoxError(Exception):
    """Becomes an HTTP answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(slots=True, kw_only=True)
class Box:
    """One sandbox as a client sees it."""

    id: str
    template: str
    spec: SandboxSpec
    metadata: dict[str, str]
    token: str
    """Without it nobody may talk to the inside."""
    started_at: float = field(default_factory=time.time)
    ends_at: float = 0.0
    """Unix time; of no meaning while paused."""
    pause_at_end: bool = False
    sandbox: Sandbox | None = None
    """None while paused."""
    home: str = "/"
    """Where relative paths begin."""
    kept: Snapshot | None = None
    """The files of a paused box."""
    programs: dict[int, Program] = field(default_factory=dict)
    key: str | None = None
    """The idempotency key that it was made with."""
    timer: asyncio.TimerHandle | None = None
    change: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is paused, resumed or ended."""

    @property
    def state(self) -> str:
        """As E2B names it."""
        return "paused" if self.sandbox is None else "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSnapshot:
    """A snapshot that a client took."""

    snapshot: Snapshot
    template: str
    box_id: str
    names: tuple[str, ...]


class Boxes:
    """All of them. Runs in one event loop."""

    def __init__(
        self, provider: SandboxProvider, templates: Mapping[str, SandboxSpec], max_sandboxes: int
    ) -> None:
        self.snapshots: dict[str, NamedSnapshot] = {}
        self._provider, self._templates, self._max = provider, dict(templates), max_sandboxes
        self._boxes: dict[str, Box] = {}
        self._by_key: dict[str, asyncio.Task[Box]] = {}
        self._starting = 0
        self._closing = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._number = itertools.count(1)

    # ------------------------------------------------------------------------------------- look up

    def all(self) -> list[Box]:
        """Newest first."""
        return sorted(self._boxes.values(), key=lambda b: (b.started_at, b.id), reverse=True)

    def get(self, box_id: str) -> Box:
        """Raises BoxError 404."""
        if box_id not in self._boxes:
            raise BoxError(404, f"sandbox {box_id!r} not found")
        return self._boxes[box_id]

    def running(self, box_id: str) -> Box | None:
        """The box, unless it is gone or paused."""
        box = self._boxes.get(box_id)
        return box if box is not None and box.sandbox is not None else None

    # ------------------------------------------------------------------------------------- life

    async def create_once(self, key: str | None, **wanted: object) -> Box:
        """`create`, or the box that an earlier call with the same idempotency key made."""
        if key is None:
            return await self.create(**wanted)  # pyright: ignore[reportArgumentType]
        task = self._by_key.get(key)
        if task is None:
            task = asyncio.ensure_future(self.create(**wanted))  # pyright: ignore[reportArgumentType]
            self._by_key[key] = task
        try:
            box = await asyncio.shield(task)
        except (BoxError, SandboxError):
            self._by_key.pop(key, None)  # what failed may be tried again
            raise
        box.key = key
        return box

    async def create(
        self,
        *,
        template: str,
        timeout_s: int,
        metadata: dict[str, str],
        env: dict[str, str],
        network: bool | tuple[str, ...],
        pause_at_end: bool = False,
    ) -> Box:
        """A running box.

        Raises:
            BoxError: 404 no such template or snapshot; 429 too many; 400 what the backend cannot give.
        """
        kept, name = None, template
        if template in self.snapshots:
            kept, name = self.snapshots[template].snapshot, self.snapshots[template].template
        if name not in self._templates:
            raise BoxError(404, f"template {template!r} not found; here are {sorted(self._templates)}")
        spec = self._templates[name]
        if network and not spec.network:
            raise BoxError(400, "this server gives no network to sandboxes")
        spec = replace(spec, env={**spec.env, **env}, network=network)
        box = Box(
            id=f"{next(self._number)}{secrets.token_hex(10)}",
            template=name,
            spec=spec,
            metadata=metadata,
            token=secrets.token_hex(32),
            pause_at_end=pause_at_end,
        )
        self._admit()
        self._starting += 1
        try:
            await self._open(box, timeout_s, kept)
        finally:
            self._starting -= 1
        if self._closing:
            await self._shut(box)
            self._admit()
        self._boxes[box.id] = box
        return box

    async def kill(self, box_id: str) -> None:
        """End it. Raises BoxError 404."""
        box = self.get(box_id)
        del self._boxes[box_id]
        self._by_key.pop(box.key or "", None)
        if box.timer is not None:
            box.timer.cancel()
        async with box.change:
            await self._shut(box)
            if box.kept is not None:
                await self._provider.delete_snapshot(box.kept)

    async def check(self, box: Box) -> bool:
        """Whether its sandbox still answers; one that does not is ended."""
        if box.sandbox is not None and await box.sandbox.alive():
            return True
        if box.sandbox is not None and box.id in self._boxes:
            await self.kill(box.id)
        return False

    async def set_timeout(self, box: Box, timeout_s: int) -> None:
        """It ends that many seconds from now."""
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise BoxError(400, f"timeout must be between 1 and {MAX_TIMEOUT_S} seconds, got {timeout_s}")
        if box.sandbox is not None:
            await box.sandbox.extend(timeout_s + OWNER_GRACE_S)
        self._arm(box, timeout_s)

    async def pause(self, box: Box) -> None:
        """Keep its files, end its programs. Raises BoxError 409 when it is paused already."""
        async with box.change:
            self.get(box.id)
            if box.sandbox is None:
                raise BoxError(409, f"sandbox {box.id!r} is already paused")
            box.kept = await box.sandbox.snapshot()
            if box.timer is not None:
                box.timer.cancel()
            await self._shut(box)

    async def resume(self, box: Box, timeout_s: int | None) -> bool:
        """Let it run (again), at least for `timeout_s`; whether it had been paused."""
        async with box.change:
            self.get(box.id)
            if box.sandbox is not None:
                if timeout_s is not None and time.time() + timeout_s > box.ends_at:
                    await self.set_timeout(box, timeout_s)
                return False
            kept = box.kept
            await self._open(box, timeout_s or DEFAULT_TIMEOUT_S, kept)
            box.kept = None
            if kept is not None:
                await self._provider.delete_snapshot(kept)
            return True

    async def snapshot(self, box: Box, name: str | None) -> tuple[str, NamedSnapshot]:
        """Keep its files as they are now; a name is given to one snapshot at most, the newest."""
        async with box.change:
            self.get(box.id)
            if box.sandbox is None:
                raise BoxError(409, f"sandbox {box.id!r} is paused")
            taken = await box.sandbox.snapshot()
        snapshot_id = f"snap{secrets.token_hex(10)}"
        for other_id, other in list(self.snapshots.items()):
            if name is not None and name in other.names:
                self.snapshots[other_id] = replace(other, names=())
        record = NamedSnapshot(
            snapshot=taken, template=box.template, box_id=box.id, names=(name,) if name else ()
        )
        self.snapshots[snapshot_id] = record
        return snapshot_id, record

    async def delete_snapshot(self, name_or_id: str) -> None:
        """Raises BoxError 404."""
        for snapshot_id, record in self.snapshots.items():
            if name_or_id == snapshot_id or name_or_id in record.names:
                del self.snapshots[snapshot_id]
                await self._provider.delete_snapshot(record.snapshot)
                return
        raise BoxError(404, f"snapshot {name_or_id!r} not found")

    async def aclose(self) -> None:
        """End everything, and make no more. Idempotent."""
        self._closing = True
        for task in list(self._by_key.values()):
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(self.kill(b) for b in list(self._boxes)), return_exceptions=True)
        for snapshot_id in list(self.snapshots):
            await self.delete_snapshot(snapshot_id)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------- inside

    def _admit(self) -> None:
        if self._closing:
            raise BoxError(503, "the server is closing")
        if len(self._boxes) + self._starting >= self._max:
            raise BoxError(429, f"the maximum number of concurrent sandboxes ({self._max}) is reached")

    async def _open(self, box: Box, timeout_s: int, kept: Snapshot | None) -> None:
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise BoxError(400, f"timeout must be between 1 and {MAX_TIMEOUT_S} seconds, got {timeout_s}")
        spec = replace(box.spec, ttl_s=timeout_s + OWNER_GRACE_S)
        try:
            sandbox = await self._provider.create(spec, labels={"e2b.id": box.id}, snapshot=kept)
        except ConfigError as error:
            raise BoxError(400, str(error)) from error
        try:
            box.home = (await sandbox.exec(["pwd"])).text.rstrip("\n")
        except BaseException:
            await sandbox.close()
            raise
        box.sandbox = sandbox
        self._arm(box, timeout_s)

    async def _shut(self, box: Box) -> None:
        sandbox, box.sandbox = box.sandbox, None
        for program in list(box.programs.values()):
            program.abandon()
        if sandbox is not None:
            await sandbox.close()

    def _arm(self, box: Box, timeout_s: float) -> None:
        if box.timer is not None:
            box.timer.cancel()
        box.ends_at = time.time() + timeout_s
        box.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, box)

    def _expire(self, box: Box) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._end_of_time(box))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_of_time(self, box: Box) -> None:
        try:
            if box.pause_at_end:
                await self.pause(box)
                return
        except (SandboxError, BoxError):
            box.pause_at_end = False  # what cannot be kept is ended
        if box.id in self._boxes:
            await self.kill(box.id)
