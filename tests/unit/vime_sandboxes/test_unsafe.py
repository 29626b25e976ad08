from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vime_agents.errors import SandboxDead, SandboxUnsupported
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import unsafe
from vime_sandboxes.ownership import owner
from vime_sandboxes.unsafe import UnsafeProvider

pytestmark = pytest.mark.filterwarnings("ignore:SandboxSpec.backend='unsafe' is NOT:RuntimeWarning")
SPEC = SandboxSpec(backend="unsafe", memory_mb=128)


@pytest.fixture
async def provider():
    made = UnsafeProvider()
    yield made
    await made.aclose()


def folders() -> set[Path]:
    mine = owner().replace(":", "+")
    return set(Path(tempfile.gettempdir()).glob(f"{unsafe._PREFIX}{mine}+*"))


def test_it_says_loudly_what_it_is_not() -> None:
    unsafe._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="NOT a sandbox"):
        UnsafeProvider()._check(SPEC)


async def test_it_claims_no_walls(provider) -> None:
    sandbox = await provider.create(SPEC)
    assert not sandbox.enforced & {"filesystem", "network", "syscalls"}
    assert {"ttl", "file_size", "open_files"} <= sandbox.enforced


async def test_the_environment_is_its_own(provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    sandbox = await provider.create(SandboxSpec(backend="unsafe", env={"GIVEN": "1"}))
    result = await sandbox.exec(["sh", "-c", 'echo "$SECRET,$GIVEN,$PWD,$HOME"'])
    assert result.text == f",1,{sandbox.workdir},{sandbox.workdir}\n"


async def test_other_users_are_refused(provider) -> None:
    sandbox = await provider.create(SPEC)
    with pytest.raises(SandboxUnsupported, match="its owner"):
        await sandbox.exec(["true"], user="nobody")
    assert (await sandbox.exec(["id", "-u"], user=str(os.getuid()))).text == f"{os.getuid()}\n"


async def test_the_end_takes_processes_and_the_folder(provider) -> None:
    sandbox = await provider.create(SPEC)
    result = await sandbox.exec(["sh", "-c", "setsid env -i sleep 600 >/dev/null 2>&1 & echo $!"])
    assert len(folders()) == 1
    await sandbox.close()
    assert folders() == set()
    assert not Path("/proc", result.text.strip()).exists()


async def test_a_runner_that_is_killed_is_a_dead_sandbox(provider) -> None:
    sandbox = await provider.create(SPEC)
    os.kill(sandbox._box.pid, signal.SIGKILL)
    with pytest.raises(SandboxDead):
        await sandbox.exec(["true"])
    await sandbox.close()
    assert folders() == set()


_OWNER = """
import asyncio
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.unsafe import UnsafeProvider
async def main():
    sandbox = await UnsafeProvider().create(SandboxSpec(backend="unsafe"))
    await sandbox.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $! > pid"])
    print(sandbox._folder, (await sandbox.read("pid")).decode(), flush=True)
    await sandbox.exec(["sleep", "600"], timeout_s=600)
asyncio.run(main())
"""


async def test_nothing_outlives_an_owner_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder, child = owner.stdout.readline().split()
        assert Path(folder).exists()
        owner.kill()
    async with asyncio.timeout(30):
        while Path(folder).exists() or Path("/proc", child).exists():
            await asyncio.sleep(0.02)


def test_orphaned_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    host, boot, pid, start = owner().split(":")
    owners = {
        "mine": owner(),
        "ended": f"{host}:{boot}:{pid}:{int(start) + 1}",
        "elsewhere": f"not-{host}:{boot}:{pid}:{start}",
    }
    for name, text in owners.items():
        (tmp_path / f"{unsafe._PREFIX}{text.replace(':', '+')}+{name}" / "work").mkdir(parents=True)
    (tmp_path / f"{unsafe._PREFIX}of-somebody").mkdir()
    unsafe._remove_orphans_once.cache_clear()
    unsafe._remove_orphans_once()
    left = {p.name.rpartition("+")[2] for p in tmp_path.iterdir()}
    assert left == {"mine", "elsewhere", f"{unsafe._PREFIX}of-somebody"}
