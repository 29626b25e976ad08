"""Sandboxes for envs under check: one pool for all, which knows what is still open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vime_agents import registry
from vime_agents.sandbox import Sandbox, SandboxInfo, SandboxSpec, Snapshot


class CountingSandboxes:
    """A `SandboxProvider` over a pool that keeps nothing warm; made on first use."""

    name = "checking"

    def __init__(self, pool: Any = None) -> None:
        self._pool = pool
        self._made: list[Sandbox] = []

    async def preflight(self) -> None:
        """Nothing of its own to try."""

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> Sandbox:
        """One of the pool's."""
        if self._pool is None:
            self._pool = registry.sandbox_pool(size=0)
        sandbox = await self._pool.create(spec, labels=labels, snapshot=snapshot)
        await self.num_open()  # what is closed need not be remembered
        self._made.append(sandbox)
        return sandbox

    async def num_open(self) -> int:
        """How many were not closed."""
        self._made = [sandbox for sandbox in self._made if await sandbox.alive()]
        return len(self._made)

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Free what it takes."""
        if self._pool is not None:
            await self._pool.delete_snapshot(snapshot)

    async def list(self) -> Sequence[SandboxInfo]:
        """The pool's."""
        return () if self._pool is None else await self._pool.list()

    async def remove(self, sandbox_id: str) -> None:
        """End one of them."""
        if self._pool is not None:
            await self._pool.remove(sandbox_id)

    async def aclose(self) -> None:
        """Close the pool and all that it lent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()
