"""What a pool keeps for one spec."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from vime_agents.errors import SandboxError
from vime_agents.sandbox import Sandbox, SandboxSpec, Snapshot


class Box:
    """One sandbox of a pool."""

    def __init__(self, sandbox: Sandbox, shelf: Shelf) -> None:
        self.sandbox, self.shelf = sandbox, shelf
        self.idle_since = time.monotonic()
        self.lent = False


Labels = tuple[tuple[str, str], ...]
Key = tuple[SandboxSpec, str | None, Labels]


class Request:
    """One call of the pool's `create`."""

    def __init__(self, spec: SandboxSpec, snapshot: Snapshot | None = None, labels: Labels = ()) -> None:
        self.spec, self.snapshot, self.labels = spec, snapshot, labels
        self.key: Key = (spec, None if snapshot is None else snapshot.id, labels)
        """Requests of the same key can be given the same sandbox."""
        self.shelf: Shelf | None = None
        self.answer: asyncio.Future[Box] | None = None
        """None: the call was refused at once."""


class Shelf:
    """The warm sandboxes of one spec, and the callers that wait for one."""

    def __init__(self, request: Request) -> None:
        self.spec, self.snapshot, self.labels = request.spec, request.snapshot, dict(request.labels)
        self.owns_snapshot = request.snapshot is None
        self._is_common = request.snapshot is None and not request.labels
        """Others may well ask for the same."""
        self.warm: deque[Box] = deque()
        self.waiting: deque[Request] = deque()
        self.num_coming = 0
        """Sandboxes that are being made."""
        self.num_requests = 0
        self.used_at = time.monotonic()
        self.failure: Exception | None = None
        """Of the last attempt to make one: none is made now that nobody waits for."""
        self._snapshot_tried = False

    @property
    def num_missing(self) -> int:
        """Callers that nothing is on its way for."""
        return len(self.waiting) - self.num_coming

    @property
    def num_warm(self) -> int:
        """Ready, or being made for nobody yet."""
        return len(self.warm) + max(0, -self.num_missing)

    @property
    def is_kept(self) -> bool:
        """Whether warm ones are worth it: a spec that is used once (an image for each task) is not."""
        return self.num_requests > 1 and self._is_common and self.failure is None

    def is_unused(self, since: float) -> bool:
        """Whether nobody asked since then, and nothing is left."""
        return self.used_at <= since and not (self.warm or self.waiting or self.num_coming)

    async def remember(self, sandbox: Sandbox) -> None:
        """Let the next ones begin from a snapshot of this new one, when its setup is in its files alone."""
        if self._snapshot_tried or not self.is_kept or not self.spec.setup:
            return
        self._snapshot_tried = True
        try:
            # A snapshot has neither programs nor what is kept in memory.
            elsewhere = await sandbox.exec(["sh", "-c", "ls -A /tmp; ls -A /dev/shm"])
            if not elsewhere.stdout and (await sandbox.info()).processes == 0:
                self.snapshot = await sandbox.snapshot()
        except SandboxError:
            return  # the setup is then done each time
