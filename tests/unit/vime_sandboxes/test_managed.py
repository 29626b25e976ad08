"""Over real local sandboxes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from vime_agents.errors import SandboxUnavailable, SandboxUnsupported
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_sandboxes import reaper
from vime_sandboxes.ledger import Entry, Ledger
from vime_sandboxes.local import LocalSandboxProvider
from vime_sandboxes.managed import ManagedProvider
from vime_sandboxes.ownership import KEY, OWNER, RUN, owner


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[ManagedProvider]:
    made = ManagedProvider(LocalSandboxProvider(), run="r1", ledger=Ledger(tmp_path))
    yield made
    await made.aclose()


async def test_a_sandbox_is_in_the_ledger_until_it_is_closed(
    provider: ManagedProvider, tmp_path: Path
) -> None:
    assert isinstance(provider, SandboxProvider)
    sandbox = await provider.create(SandboxSpec(), labels={"episode": "e1"})
    assert isinstance(sandbox, Sandbox)
    ((entry,), _) = Ledger(tmp_path).read()
    assert (entry.backend, entry.run, entry.stage, entry.sandbox_id) == ("local", "r1", "open", sandbox.id)
    assert sandbox.labels == {"episode": "e1", RUN: "r1", OWNER: owner(), KEY: entry.key}
    assert (await sandbox.exec(["echo", "hi"])).text == "hi\n"
    await sandbox.close()
    assert Ledger(tmp_path).read() == ([], {})


async def test_what_is_refused_leaves_no_entry(provider: ManagedProvider, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupported):
        await provider.create(SandboxSpec(image="debian"))
    assert Ledger(tmp_path).read() == ([], {})


async def test_a_ledger_that_cannot_be_written_is_told_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path / "file"))
    inner = LocalSandboxProvider()
    with pytest.raises(SandboxUnavailable, match=r"cannot write the ledger.*Set VIME_AGENTS_STATE"):
        await ManagedProvider(inner).create(SandboxSpec())

    def full(*_: object, **__: object) -> Entry:
        raise SandboxUnavailable("No space left on device")

    ledger = Ledger(tmp_path / "state")
    monkeypatch.setattr(ledger, "update", full)
    with pytest.raises(SandboxUnavailable, match="No space left"):
        await ManagedProvider(inner, ledger=ledger).create(SandboxSpec())
    assert inner._open == {}


async def test_the_callers_label_of_the_run_stays_when_there_is_no_other(tmp_path: Path) -> None:
    provider = ManagedProvider(LocalSandboxProvider(), ledger=Ledger(tmp_path))
    sandbox = await provider.create(SandboxSpec(), labels={RUN: "mine"})
    assert sandbox.labels[RUN] == "mine"
    await provider.aclose()


async def test_a_cancelled_creation_is_left_to_the_reaper(provider: ManagedProvider, tmp_path: Path) -> None:
    task = asyncio.ensure_future(provider.create(SandboxSpec()))
    while not Ledger(tmp_path).read()[0]:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ((entry,), _) = Ledger(tmp_path).read()
    assert entry.stage == "abandoned"


async def test_its_time_is_renewed_while_its_owner_lives(provider: ManagedProvider, tmp_path: Path) -> None:
    sandbox = await provider.create(SandboxSpec(ttl_s=1.0))
    ((first,), _) = Ledger(tmp_path).read()
    async with asyncio.timeout(30):  # 1.5 s here: renewed four times
        while Ledger(tmp_path).read()[0][0].expires_at < first.expires_at + 1.5:
            await asyncio.sleep(0.05)
    assert await sandbox.alive()
    await sandbox.close()


async def test_closing_the_provider_closes_everything(provider: ManagedProvider, tmp_path: Path) -> None:
    sandboxes = [await provider.create(SandboxSpec()) for _ in range(3)]
    await provider.aclose()
    assert [await s.alive() for s in sandboxes] == [False] * 3
    assert Ledger(tmp_path).read() == ([], {})


async def test_one_that_cannot_be_closed_does_not_keep_the_others_open(
    provider: ManagedProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = [await provider.create(SandboxSpec()) for _ in range(3)]

    async def refuse() -> None:
        raise SandboxUnavailable("the daemon is gone")

    with monkeypatch.context() as patch:
        patch.setattr(first.inner, "close", refuse)
        patch.setattr(provider.inner, "aclose", backend_closed := AsyncMock())
        with pytest.raises(SandboxUnavailable, match="the daemon is gone"):
            await provider.aclose()
        assert [await s.alive() for s in others] == [False] * 2
        assert [e.sandbox_id for e in Ledger(tmp_path).read()[0]] == [first.id]  # for the reaper
        backend_closed.assert_awaited_once()


OWNER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.ledger import Entry, Ledger
from vime_sandboxes.local import LocalSandboxProvider
from vime_sandboxes.managed import ManagedProvider

async def main():
    provider = ManagedProvider(LocalSandboxProvider(), run="killed", ledger=Ledger(Path(sys.argv[1])))
    for _ in range(3):
        sandbox = await provider.create(SandboxSpec())
        print(sandbox.id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_living_owners_sandbox_stays_and_a_dead_owners_entry_goes(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER_PROGRAM, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    ids = {(await process.stdout.readline()).decode().strip() for _ in range(3)}
    ledger = Ledger(tmp_path)
    report = await reaper.reap(backends=["local"], ledger=ledger)
    kept = {f.info.id: f for f in report.kept}
    assert ids <= kept.keys()
    assert {kept[i].owner_alive for i in ids} == {True}
    assert {kept[i].info.labels[RUN] for i in ids} == {"killed"}
    assert len(ledger.read()[0]) == 3
    process.kill()
    await process.wait()
    async with asyncio.timeout(20):  # its sandboxes end with it, without any reaper
        while ids & {f.info.id for f in (await reaper.survey(["local"], ledger=ledger)).found}:
            await asyncio.sleep(0.05)
    assert len(ledger.read()[0]) == 3
    await reaper.reap(backends=["local"], ledger=ledger)
    assert ledger.read() == ([], {})


async def test_a_backend_that_does_not_work_here_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    report = await reaper.reap(backends=["docker", "local"], ledger=Ledger(tmp_path / "ledger"), dry_run=True)
    assert list(report.unavailable) == ["docker"]
    assert "nothing.sock" in report.unavailable["docker"]
