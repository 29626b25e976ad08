"""The allow-list of `SandboxSpec.network`: the sandbox has no network, and one way out that the owner checks.

A program inside listens on its loopback interface and hands connections to the owner over its standard input
and output (`relay`); there an HTTP proxy (`egress_proxy`) asks the policy. Works on every backend that can
switch the network off. Names are looked up by the owner alone, and only those on the list.

Backends add `proxy_environment()` to what commands start with, call `await start(...)` once the sandbox
answers, and `await egress.aclose()` when they close it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from vime_agents.errors import SandboxDead, SandboxError
from vime_agents.sandbox import Sandbox
from vime_sandboxes.egress_policy import Policy
from vime_sandboxes.egress_proxy import serve
from vime_sandboxes.io_thread import on_io_thread
from vime_sandboxes.relay import Relay, RelayStream

PORT = 3128
"""Of the proxy, on the loopback interface inside."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Seconds between attempts to start again what the inside has killed."""


def proxy_environment() -> dict[str, str]:
    """What makes ordinary programs inside use the proxy."""
    url = f"http://127.0.0.1:{PORT}"
    own = "localhost,127.0.0.1"
    names = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": own}
    return names | {name.lower(): value for name, value in names.items()}


async def start(sandbox: Sandbox, allow: Sequence[str]) -> Egress:
    """Open the way out.

    Raises:
        ConfigError: an entry of `allow` cannot be understood. SandboxUnsupported: no python3 inside.
        SandboxNotReady: the proxy did not start; PORT may be taken.
    """
    egress = Egress(sandbox, Policy(allow))
    await on_io_thread(egress.open())
    return egress


class Egress:
    """The way out of one sandbox, until it is closed or the sandbox ends."""

    def __init__(self, sandbox: Sandbox, policy: Policy) -> None:
        self._sandbox, self._policy = sandbox, policy
        self._relay: Relay | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start the program inside, and see to it that it runs. On the input/output thread only."""
        self._relay = await self._start_relay()
        self._keeper = asyncio.create_task(self._keep())

    async def aclose(self) -> None:
        """Close it. Idempotent."""
        await on_io_thread(self._close())

    async def _close(self) -> None:
        keeper, self._keeper = self._keeper, None
        tasks = [t for t in (keeper, *self._serving) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._relay is not None:
            await self._relay.aclose()

    async def _start_relay(self) -> Relay:
        return await Relay.start(self._sandbox, port=PORT, on_open=self._accept)

    async def _keep(self) -> None:
        """Start the program again when the inside has ended it, or a restore has."""
        pause_s = MIN_PAUSE_S
        while True:
            assert self._relay is not None
            await asyncio.wait({self._relay.ended})
            try:
                self._relay = await self._start_relay()
            except SandboxDead:
                return
            except SandboxError:  # no process left for it, say: once more, later
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            await asyncio.sleep(pause_s)

    def _accept(self, stream: RelayStream) -> None:
        task = asyncio.create_task(serve(stream, self._policy))
        self._serving.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled():
            task.exception()  # the connection broke; both of its ends know
