"""Sandboxes on this machine: one bubblewrap each, with a runner inside that answers in milliseconds.

What holds is in `Sandbox.enforced`: filesystem, network, processes, file_size, disk, open_files, ttl,
syscalls (on processors that `seccomp` knows), cpus (when asked for), and memory (the sum of all processes)
or, where no control group can be made, memory_per_process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vime_agents.errors import ConfigError, SandboxError, SandboxUnsupported
from vime_agents.sandbox import SandboxInfo, SandboxSpec, Snapshot
from vime_sandboxes import local_marks, local_snapshot, profile
from vime_sandboxes.egress_policy import Policy
from vime_sandboxes.io_thread import made
from vime_sandboxes.local_sandbox import LocalSandbox
from vime_sandboxes.ownership import OWNER, owner
from vime_sandboxes.spec_checks import check_env, check_memory, check_positive


class LocalSandboxProvider:
    """Makes local sandboxes; see `vime_agents.sandbox.SandboxProvider`."""

    name = "local"
    sandbox_class: type[LocalSandbox] = LocalSandbox

    def __init__(self) -> None:
        self._open: dict[str, LocalSandbox] = {}
        self._slots: asyncio.Semaphore | None = None

    async def preflight(self) -> None:
        """Make a small sandbox and run a command in it. Raises SandboxUnavailable."""
        sandbox = await self.create(SandboxSpec(backend=self.name, memory_mb=64, ttl_s=60.0))
        try:
            result = await sandbox.exec(["true"])
        finally:
            await sandbox.close()
        if not result.ok:
            raise SandboxError(f"`true` ended with {result.ended_by} in a sandbox of backend {self.name}")

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> LocalSandbox:
        """A ready sandbox. When the caller is cancelled, what was begun is finished and closed.

        With a `snapshot`, the spec's files and setup are not repeated: the snapshot has what they made.
        """
        self._check(spec)
        file = None if snapshot is None else local_snapshot.find(snapshot)
        return await made(self._create(spec, labels or {}, file), LocalSandbox.release)

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Free what it takes. Idempotent."""
        local_snapshot.delete(snapshot)

    async def list(self) -> Sequence[SandboxInfo]:
        """Every local sandbox on this machine, of any process whose commands can be seen."""
        return await asyncio.to_thread(local_marks.find, self.name)

    async def remove(self, sandbox_id: str) -> None:
        """End a sandbox of any owner. Raises PermissionError when it is another user's."""
        await asyncio.to_thread(local_marks.remove, self.name, sandbox_id)

    async def aclose(self) -> None:
        """Close everything that this provider made."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open.values())))

    async def _create(
        self, spec: SandboxSpec, labels: Mapping[str, str], snapshot: Path | None
    ) -> LocalSandbox:
        # More at once than there are cores would only make each of them slow.
        self._slots = self._slots or asyncio.Semaphore(2 * (os.cpu_count() or 1))
        labels = {OWNER: owner(), **labels}
        sandbox = self.sandbox_class(spec, labels, lambda s: self._open.pop(s.id, None))
        async with self._slots:
            await sandbox.open(snapshot)
        self._open[sandbox.id] = sandbox
        return sandbox

    def _check(self, spec: SandboxSpec) -> None:
        check(spec)


def check(spec: SandboxSpec) -> None:
    """Refuse what no backend on this machine's processes can give. Raises ConfigError, SandboxUnsupported."""
    if spec.image is not None or spec.build is not None:
        raise SandboxUnsupported(
            f"the local backend runs no images, got image={spec.image!r}, build={spec.build!r}; use None or "
            "another backend"
        )
    if isinstance(spec.network, tuple):
        Policy(spec.network)  # raises for what it cannot understand
    if spec.user not in (None, profile.USER, str(profile.INNER_ID)):
        raise SandboxUnsupported(f"SandboxSpec.user: the local backend has one user, got {spec.user!r}")
    if spec.options:
        raise ConfigError(f"SandboxSpec.options: the local backend has none, got {sorted(spec.options)}")
    check_memory(spec)
    check_positive(spec, "max_processes", "max_file_mb", "ttl_s", "cpus")
    check_env(spec)
