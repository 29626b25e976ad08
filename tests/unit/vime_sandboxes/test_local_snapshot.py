from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vime_agents.errors import SandboxUnavailable
from vime_agents.sandbox import SandboxSpec, Snapshot
from vime_sandboxes import local_snapshot
from vime_sandboxes.local import LocalSandboxProvider


@pytest.fixture
async def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path))
    made = LocalSandboxProvider()
    yield made
    await made.aclose()


async def test_snapshots_are_files_of_the_state_folder(provider, tmp_path: Path) -> None:
    sandbox = await provider.create(SandboxSpec(memory_mb=64))
    await sandbox.write("x", b"1")
    snapshot = await sandbox.snapshot()
    (file,) = (tmp_path / "snapshots").iterdir()
    assert (snapshot.id, snapshot.spec, snapshot.size_bytes) == (str(file), sandbox.spec, file.stat().st_size)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    local_snapshot.remove_orphans(file.parent)
    assert file.exists()
    await provider.delete_snapshot(snapshot)
    await provider.delete_snapshot(snapshot)
    assert not file.exists()
    with pytest.raises(SandboxUnavailable, match="was deleted"):
        await sandbox.restore(snapshot)
    assert await sandbox.alive()


_OWNER = """
import asyncio, os, sys
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.local import LocalSandboxProvider
async def main():
    sandbox = await LocalSandboxProvider().create(SandboxSpec(memory_mb=64))
    print((await sandbox.snapshot()).id, flush=True)
    if sys.argv[1] == "killed": os.kill(os.getpid(), 9)
asyncio.run(main())
"""


async def test_snapshots_end_with_their_owner(provider, tmp_path: Path) -> None:
    for how in ("exits", "killed"):
        done = subprocess.run([sys.executable, "-c", _OWNER, how], stdout=subprocess.PIPE, check=False)
        file = Path(done.stdout.decode().strip())
        assert file.exists() == (how == "killed")
    local_snapshot.remove_orphans(tmp_path / "snapshots")
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_another_hosts_snapshots_and_other_files_are_left_alone(tmp_path: Path) -> None:
    names = ["elsewhere:00ff:1:5:ab.snapshot.tar", "x.snapshot.tar", "notes.txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    local_snapshot.remove_orphans(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names)


async def test_what_is_no_snapshot_is_neither_read_nor_deleted(provider, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_bytes(b"1")
    snapshot = Snapshot(id=str(file), spec=SandboxSpec())
    await provider.delete_snapshot(snapshot)
    assert file.exists()
    with pytest.raises(SandboxUnavailable, match="no snapshot"):
        await provider.create(SandboxSpec(), snapshot=snapshot)
