"""Sandboxes of E2B: its cloud, a deployment of one's own, or `vime-agents sandboxes serve-e2b`.

Key and address come from E2B's own variables (E2B_API_KEY, E2B_DOMAIN, E2B_API_URL, E2B_SANDBOX_URL) or from
the provider's arguments. `SandboxSpec.image` names the template, which needs `python3` (3.9 or later) and
`sh`; commands run in the folder `work` of the user's home.

What a sandbox may use is a property of its template. What holds is in `Sandbox.enforced`:

- filesystem, ttl: always; the inside is a machine of its own.
- file_size, processes, memory_per_process: as resource limits of the unprivileged user, who cannot become
  root (no_new_privs: `sudo` does not work). They do not bind commands that the owner runs as `root`.
- memory, cpus: when the template has no more than the spec allows. A spec with `cpus` is refused otherwise.
- network: False and host names are held by E2B; a host with a port is refused.

`build` is refused: build templates with E2B's own tools. A snapshot is one of E2B's: of the file system where
the account may take those, else with memory, whose programs are killed when it is used.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_agents.errors import ConfigError, SandboxUnavailable, SandboxUnsupported
from vime_agents.sandbox import SandboxInfo, SandboxSpec, Snapshot
from vime_sandboxes.io_thread import made, on_io_thread
from vime_sandboxes.spec_checks import check_env, check_positive

if TYPE_CHECKING:
    from vime_sandboxes.e2b_cloud import Cloud
    from vime_sandboxes.e2b_sandbox import E2BSandbox


class E2BSandboxProvider:
    """Makes E2B sandboxes; see `vime_agents.sandbox.SandboxProvider`."""

    name = "e2b"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        domain: str | None = None,
        api_url: str | None = None,
        sandbox_url: str | None = None,
    ) -> None:
        """Each argument: None: the value of E2B's variable of that name."""
        given = {"api_key": api_key, "domain": domain, "api_url": api_url, "sandbox_url": sandbox_url}
        self._options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        self._open: dict[str, E2BSandbox] = {}

    async def preflight(self) -> None:
        """Ask E2B for one page of sandboxes; see the protocol."""
        await on_io_thread(self._cloud().check())

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> E2BSandbox:
        """A ready sandbox; see the protocol. When the caller is cancelled, what was begun is ended."""
        _check(spec)
        return await made(self._create(spec, labels or {}, snapshot), lambda sandbox: sandbox.end())

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Free what it takes. Idempotent."""
        await on_io_thread(self._cloud().delete_snapshot(snapshot.id))

    async def list(self) -> Sequence[SandboxInfo]:
        """Every sandbox of the account that vime-agents made, running or paused."""
        return await on_io_thread(self._cloud().list())

    async def remove(self, sandbox_id: str) -> None:
        """End a sandbox of any owner by its id; by E2B's id too. Idempotent."""
        await on_io_thread(self._cloud().remove(sandbox_id))

    async def aclose(self) -> None:
        """Close everything that this provider made."""
        closing = [sandbox.close() for sandbox in self._open.values()]
        results = await asyncio.gather(*closing, return_exceptions=True)
        for problem in results:
            if isinstance(problem, BaseException):
                raise problem

    def _cloud(self) -> Cloud:
        if importlib.util.find_spec("e2b") is None:
            raise SandboxUnavailable(
                "the E2B backend needs the package 'e2b': pip install 'vime-agents[e2b]'"
            )
        from vime_sandboxes.e2b_cloud import Cloud

        return Cloud(self._options)

    async def _create(
        self, spec: SandboxSpec, labels: Mapping[str, str], snapshot: Snapshot | None
    ) -> E2BSandbox:
        cloud = self._cloud()
        from vime_sandboxes.e2b_sandbox import E2BSandbox

        sandbox = await E2BSandbox.make(
            cloud, spec, labels, snapshot, on_end=lambda s: self._open.pop(s.id, None)
        )
        self._open[sandbox.id] = sandbox
        return sandbox


def _check(spec: SandboxSpec) -> None:
    if spec.build is not None:
        raise SandboxUnsupported("E2B builds no Dockerfile here; build a template, and name it in `image`")
    check_positive(spec, "memory_mb", "max_processes", "max_file_mb", "ttl_s")
    if spec.options:
        raise ConfigError(f"SandboxSpec.options: the E2B backend has none, got {sorted(spec.options)}")
    check_env(spec)
    ports = [h for h in spec.network if ":" in h] if isinstance(spec.network, tuple) else []
    if ports:
        raise SandboxUnsupported(f"E2B allows hosts, not single ports of them: {ports}")
