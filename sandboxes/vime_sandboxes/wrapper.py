"""A sandbox around a sandbox: everything goes through, until a subclass changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vime_agents.sandbox import ExecResult, Sandbox, SandboxInfo, SandboxProcess, SandboxSpec, Snapshot


class SandboxWrapper:
    """See `vime_agents.sandbox.Sandbox`."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.id = inner.id
        self.spec: SandboxSpec = inner.spec
        self.labels: Mapping[str, str] = inner.labels
        self.enforced = inner.enforced

    async def exec(  # noqa: D102 - all documented by the protocol
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        return await self.inner.exec(
            command, stdin=stdin, env=env, cwd=cwd, user=user, timeout_s=timeout_s, max_output=max_output
        )

    async def spawn(  # noqa: D102
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> SandboxProcess:
        return await self.inner.spawn(command, env=env, cwd=cwd, user=user, timeout_s=timeout_s)

    async def read(self, path: str, *, max_bytes: int = 100 << 20) -> bytes:  # noqa: D102
        return await self.inner.read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:  # noqa: D102
        await self.inner.write(path, data, mode=mode)

    async def upload(self, source: Path, target: str) -> None:  # noqa: D102
        await self.inner.upload(source, target)

    async def download(self, source: str, target: Path, *, max_bytes: int = 1 << 30) -> None:  # noqa: D102
        await self.inner.download(source, target, max_bytes=max_bytes)

    async def snapshot(self) -> Snapshot:  # noqa: D102
        return await self.inner.snapshot()

    async def restore(self, snapshot: Snapshot) -> None:  # noqa: D102
        await self.inner.restore(snapshot)

    async def extend(self, ttl_s: float) -> None:  # noqa: D102
        await self.inner.extend(ttl_s)

    async def info(self) -> SandboxInfo:  # noqa: D102
        return await self.inner.info()

    async def alive(self) -> bool:  # noqa: D102
        return await self.inner.alive()

    async def close(self) -> None:  # noqa: D102
        await self.inner.close()
