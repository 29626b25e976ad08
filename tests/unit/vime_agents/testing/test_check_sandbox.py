from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from vime_agents.errors import CommandNotFound, ContractError, SandboxError, SandboxFileNotFound
from vime_agents.sandbox import ExecResult, SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS, check_sandbox
from vime_agents.testing.sandbox_kit import command_line


class BareProcess:
    """No sandbox at all: a folder and plain processes of the host. What a careless backend would be."""

    enforced = frozenset({"network", "memory"})

    def __init__(self, spec: SandboxSpec) -> None:
        self.id, self.spec = "bare", spec
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name

    async def exec(self, command, *, stdin=b"", env=None, cwd=None, timeout_s=60.0, max_output=1 << 20):
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=cwd or self.folder,
                env={**os.environ, **self.spec.env, **(env or {})},
            )
        except FileNotFoundError as error:
            raise CommandNotFound(str(error)) from error
        out, err = await process.communicate(stdin)
        code = process.returncode or 0
        return ExecResult(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=out,
            stderr=err,
            stdout_bytes=len(out),
            stderr_bytes=len(err),
            duration_s=0.0,
        )

    async def read(self, path, *, max_bytes=100 << 20):
        try:
            with open(os.path.join(self.folder, path), "rb") as file:
                return file.read()
        except FileNotFoundError as error:
            raise SandboxFileNotFound(str(error)) from error

    async def write(self, path, data, *, mode=0o644):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    async def alive(self):
        return True

    async def close(self):
        self._folder.cleanup()


class BareProvider:
    name = "bare"

    async def create(self, spec, *, labels=None):
        return BareProcess(spec)

    async def aclose(self):
        pass


# Only checks that leave the host alone when nothing keeps them in.
CAUGHT = [
    "long_output_is_capped_and_counted",
    "missing_things_have_their_errors",
    "files_round_trip",
    "host_secrets_are_unreadable",
    "no_network_means_none",
    "files_are_bounded",
]


@pytest.mark.parametrize("name", CAUGHT)
async def test_a_careless_backend_is_caught(name: str) -> None:
    with pytest.raises((ContractError, SandboxError)):
        await CHECKS[name](BareProvider(), SandboxSpec())


@pytest.mark.parametrize("name", ["bytes_survive", "arguments_are_not_interpreted"])
async def test_what_it_does_right_passes(name: str) -> None:
    await CHECKS[name](BareProvider(), SandboxSpec())


async def test_all_failures_are_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(CHECKS) - {"host_secrets_are_unreadable", "files_are_bounded", "bytes_survive"}:
        monkeypatch.delitem(CHECKS, name)
    with pytest.raises(ContractError, match="bare: 2 broken promises") as caught:
        await check_sandbox(BareProvider())
    assert 'host_secrets_are_unreadable: ContractError("no secret of the host; saw' in str(caught.value)
    assert "files_are_bounded" in str(caught.value)
    assert "bytes_survive" not in str(caught.value)


def test_a_process_that_becomes_another_program_is_seen_every_time(tmp_path: Path) -> None:
    """In the middle of execve(2) it shows no arguments: a check that counts processes would miss it."""
    program = tmp_path / "again.sh"
    program.write_text('exec /bin/sh "$0"\n')
    with subprocess.Popen(["/bin/sh", program]) as process:
        try:
            assert all(b"again.sh" in command_line(str(process.pid)) for _ in range(1000))
        finally:
            process.kill()
    assert command_line(str(process.pid)) == b""
