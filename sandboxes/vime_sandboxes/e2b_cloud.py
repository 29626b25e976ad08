"""E2B's control plane: every call about sandboxes from outside of them, with its repetitions and errors."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from e2b import ALL_TRAFFIC, AsyncSandbox
from e2b.sandbox.sandbox_api import SandboxInfo as RemoteInfo
from e2b.sandbox.sandbox_api import SandboxNetworkOpts, SandboxQuery, SnapshotMode

from vime_agents.errors import SandboxError, SandboxUnavailable
from vime_agents.sandbox import SandboxInfo, SandboxSpec
from vime_sandboxes.e2b_errors import control, translate_creation

MADE_BY = ("vime.made_by", "vime-agents")
"""Metadata of everything that we make: how it is found again among the account's other sandboxes."""
ID = "vime.id"
REQUEST_TIMEOUT_S = 30.0
CLEANUP_TIMEOUT_S = 20.0
_NO_FILESYSTEM_SNAPSHOTS = (400, 409)
"""Answers of accounts and machines that cannot take them."""


class Cloud:
    """The account."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options: dict[str, Any] = {"request_timeout": REQUEST_TIMEOUT_S, **options}

    async def check(self) -> None:
        """Raises SandboxUnavailable when the service cannot be used."""
        try:
            await control(
                lambda: AsyncSandbox.list(limit=1, **self.options).next_items(), "asking E2B", deadline_s=15.0
            )
        except SandboxUnavailable:
            raise
        except SandboxError as error:
            raise SandboxUnavailable(f"E2B does not answer: {error}") from error

    async def create(
        self, spec: SandboxSpec, template: str, metadata: Mapping[str, str], ttl_s: float
    ) -> AsyncSandbox:
        """A started sandbox. When that fails, or is cancelled, one that may have started is ended."""
        key = secrets.token_hex(16)
        network: SandboxNetworkOpts | None = None
        if isinstance(spec.network, tuple):
            network = {"allow_out": list(spec.network), "deny_out": [ALL_TRAFFIC]}
        try:
            return await control(
                lambda: AsyncSandbox.create(
                    template,
                    timeout=math.ceil(ttl_s),
                    metadata=dict(metadata),
                    envs=dict(spec.env),
                    allow_internet_access=bool(spec.network),
                    network=network,
                    idempotency_key=key,
                    **self.options,
                ),
                "creating a sandbox",
                translation=lambda error: translate_creation(error, template),
            )
        except (SandboxError, asyncio.CancelledError) as error:
            # The request may have been served though its answer was lost.
            if not isinstance(error, SandboxUnavailable):
                await asyncio.shield(self._clean_up(metadata[ID]))
            raise

    async def kill(self, remote_id: str) -> None:
        """Idempotent."""
        await control(
            lambda: AsyncSandbox.kill(remote_id, **self.options),
            f"ending {remote_id}",
            deadline_s=CLEANUP_TIMEOUT_S,
        )

    async def info(self, remote_id: str) -> RemoteInfo:
        """Of one sandbox."""
        return await control(
            lambda: AsyncSandbox.get_info(remote_id, **self.options), f"asking about {remote_id}"
        )

    async def memory_peak(self, remote_id: str) -> int | None:
        """The most memory in bytes that was measured; None when nothing was."""
        samples = await control(
            lambda: AsyncSandbox.get_metrics(remote_id, **self.options), f"measuring {remote_id}"
        )
        return max((sample.mem_used for sample in samples), default=None)

    async def set_timeout(self, remote_id: str, ttl_s: float) -> None:
        """It ends that many seconds from now; E2B counts whole ones."""
        await control(
            lambda: AsyncSandbox.set_timeout(remote_id, math.ceil(ttl_s), **self.options),
            f"extending {remote_id}",
        )

    async def snapshot(self, remote_id: str) -> str:
        """Of the file system alone where the account may take such, else with memory; its id."""
        try:
            return await self._snapshot(remote_id, "filesystem")
        except SandboxError as error:
            if getattr(error.__cause__, "status_code", None) not in _NO_FILESYSTEM_SNAPSHOTS:
                raise
        return await self._snapshot(remote_id, "full")

    async def _snapshot(self, remote_id: str, mode: SnapshotMode) -> str:
        # Not idempotent: repeated, it may leave a snapshot that nobody knows.
        taken = await control(
            lambda: AsyncSandbox.create_snapshot(remote_id, mode=mode, **self.options),
            f"a snapshot of {remote_id}",
            idempotent=False,
        )
        return taken.snapshot_id

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Idempotent."""
        await control(
            lambda: AsyncSandbox.delete_snapshot(snapshot_id, **self.options), f"deleting {snapshot_id}"
        )

    async def list(self) -> list[SandboxInfo]:
        """Everything that vime-agents made in this account."""
        return [_described(info) async for info in self._find(dict([MADE_BY]))]

    async def remove(self, sandbox_id: str) -> None:
        """End what has this id, ours or E2B's. Idempotent."""
        found = [info.sandbox_id async for info in self._find({ID: sandbox_id})]
        await asyncio.gather(*(self.kill(remote_id) for remote_id in found or [sandbox_id]))

    async def _clean_up(self, sandbox_id: str) -> None:
        # Nothing can be done about a failure here: what is left has its time to live, and the reaper.
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                async for info in self._find({ID: sandbox_id}):
                    await self.kill(info.sandbox_id)
        except (SandboxError, TimeoutError):
            return

    async def _find(self, metadata: dict[str, str]) -> AsyncIterator[RemoteInfo]:
        pages = AsyncSandbox.list(query=SandboxQuery(metadata=metadata), **self.options)
        while pages.has_next:
            for info in await control(pages.next_items, "listing sandboxes"):
                yield info


def _described(info: RemoteInfo) -> SandboxInfo:
    labels = {str(k): str(v) for k, v in (info.metadata or {}).items()}
    return SandboxInfo(
        id=labels.get(ID, info.sandbox_id),
        backend="e2b",
        labels=labels,
        created_at=info.started_at.timestamp(),
        expires_at=info.end_at.timestamp(),
        state=info.state.value,
    )
