"""Sandboxes that cannot be lost: in the ledger from before they exist, kept alive while their owner lives.

The time to live of a sandbox is a dead man's switch here: it is set anew every third of it, so that an
episode may last, and ends what an owner leaves that can no longer renew it, also on a host that nobody reaps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from vime_agents.errors import SandboxDead, SandboxError, SandboxTimeout, SandboxUnreachable
from vime_agents.sandbox import Sandbox, SandboxInfo, SandboxProvider, SandboxSpec, Snapshot
from vime_sandboxes import reaper
from vime_sandboxes.io_thread import submit
from vime_sandboxes.ledger import ABANDONED, OPEN, Entry, Ledger
from vime_sandboxes.ownership import KEY, OWNER, RUN
from vime_sandboxes.wrapper import SandboxWrapper

RENEWALS_PER_TTL = 3


class ManagedSandbox(SandboxWrapper):
    """A sandbox with an entry in the ledger."""

    def __init__(
        self, inner: Sandbox, entry: Entry, ledger: Ledger, on_close: Callable[[ManagedSandbox], object]
    ) -> None:
        super().__init__(inner)
        self._entry, self._ledger, self._on_close = entry, ledger, on_close
        self._ttl_s = inner.spec.ttl_s
        self._renewal = submit(self._renew())

    async def extend(self, ttl_s: float) -> None:
        """See the protocol; from now on this is the time that is renewed."""
        await self.inner.extend(ttl_s)
        self._ttl_s = ttl_s
        self._note_expiry()
        self._renewal.cancel()
        self._renewal = submit(self._renew())

    async def close(self) -> None:
        """End it; what could not be ended stays in the ledger, for the reaper."""
        self._renewal.cancel()
        await self.inner.close()
        self._ledger.remove(self._entry)
        self._on_close(self)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL)
            try:
                await self.inner.extend(self._ttl_s)
                self._note_expiry()
            except SandboxDead:
                return  # whoever uses it will be told
            except SandboxError:
                continue  # there are more chances before its time is up

    def _note_expiry(self) -> None:
        self._entry = self._ledger.update(self._entry, expires_at=time.time() + self._ttl_s)


class ManagedProvider:
    """A backend with a ledger; see `vime_agents.sandbox.SandboxProvider`."""

    def __init__(self, inner: SandboxProvider, *, run: str = "", ledger: Ledger | None = None) -> None:
        """`run` becomes a label; `ledger`: None takes this user's own."""
        self.name = inner.name
        self.inner = inner
        self._run = run
        self._ledger = ledger or Ledger()
        self._open: set[ManagedSandbox] = set()

    async def preflight(self) -> None:  # noqa: D102 - documented by the protocol
        await self.inner.preflight()

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> ManagedSandbox:
        """A ready sandbox. The first also ends, in the background, what dead owners left on this backend."""
        reaper.start_in_background(self.name, self._ledger)
        entry = self._ledger.open(self.name, ttl_s=spec.ttl_s, run=self._run)
        own = {OWNER: entry.owner, KEY: entry.key} | ({RUN: self._run} if self._run else {})
        try:
            inner = await self.inner.create(spec, labels={**(labels or {}), **own}, snapshot=snapshot)
        except (asyncio.CancelledError, SandboxTimeout, SandboxUnreachable):
            # Something may have come of it, or still may: the backend sees to that, or else the reaper.
            self._ledger.update(entry, stage=ABANDONED)
            raise
        except BaseException:
            self._ledger.remove(entry)
            raise
        try:
            entry = self._ledger.update(entry, stage=OPEN, sandbox_id=inner.id)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(inner.close()))
            raise
        sandbox = ManagedSandbox(inner, entry, self._ledger, self._open.discard)
        self._open.add(sandbox)
        return sandbox

    async def delete_snapshot(self, snapshot: Snapshot) -> None:  # noqa: D102
        await self.inner.delete_snapshot(snapshot)

    async def list(self) -> Sequence[SandboxInfo]:  # noqa: D102
        return await self.inner.list()

    async def remove(self, sandbox_id: str) -> None:  # noqa: D102
        await self.inner.remove(sandbox_id)

    async def aclose(self) -> None:
        """Close everything that this provider made."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.inner.aclose)
            results = await asyncio.gather(*(box.close() for box in list(self._open)), return_exceptions=True)
            for error in results:
                if isinstance(error, BaseException):
                    raise error
