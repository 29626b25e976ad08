"""What a dead owner leaves on a daemon is removed by the next round of the reaper, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.sandboxes import docker_daemon
from tests.integration.sandboxes.test_docker_lifetime import names, start_owner, until
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import reaper
from vime_sandboxes.docker import DockerSandboxProvider
from vime_sandboxes.ledger import Ledger
from vime_sandboxes.managed import ManagedProvider

pytestmark = pytest.mark.integration


async def test_a_dead_owners_containers_go_and_a_living_owners_stay(
    daemon: docker_daemon.Daemon,
    docker_provider: DockerSandboxProvider,
    python_spec: SandboxSpec,
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path)
    ours = await ManagedProvider(docker_provider, run="mine", ledger=ledger).create(python_spec)
    owner = start_owner(2)
    assert owner.stdout is not None
    theirs = {(await asyncio.to_thread(owner.stdout.readline)).decode().strip() for _ in range(2)}

    report = await reaper.reap(backends=["docker"], ledger=ledger)
    assert report.removed == []
    assert {f.info.id for f in report.kept} == {ours.id, *theirs}
    assert [f.owner_alive for f in report.kept] == [True] * 3

    for name in theirs:  # frozen, they cannot see that their owner dies, nor that their time is up
        daemon.docker("pause", name)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert set(names(daemon)) == {ours.id, *theirs}

    dry = await reaper.reap(backends=["docker"], ledger=ledger, dry_run=True)
    assert {f.info.id for f in dry.removed} == theirs
    assert {f.reason for f in dry.removed} == {f"its owner, process {owner.pid}, is dead"}
    assert set(names(daemon)) == {ours.id, *theirs}

    report = await reaper.reap(backends=["docker"], ledger=ledger)
    assert ({f.info.id for f in report.removed}, report.failed) == (theirs, [])
    await until(lambda: names(daemon) == [ours.id], "what was reaped is still there")
    assert (await ours.exec(["echo", "hi"])).text == "hi\n"
    await ours.close()
    assert ledger.read() == ([], {})


async def test_what_a_given_up_creation_left_is_removed_though_its_owner_lives(
    daemon: docker_daemon.Daemon,
    docker_provider: DockerSandboxProvider,
    python_spec: SandboxSpec,
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path)
    sandbox = await ManagedProvider(docker_provider, ledger=ledger).create(python_spec)
    ((entry,), _) = ledger.read()
    ledger.update(entry, stage="abandoned")
    report = await reaper.reap(backends=["docker"], ledger=ledger)
    assert [f.info.id for f in report.removed] == [sandbox.id]
    assert names(daemon) == []
    assert ledger.read() == ([], {})
    assert not await sandbox.alive()
    await sandbox.close()
