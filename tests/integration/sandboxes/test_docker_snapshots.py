"""Snapshots of Docker sandboxes: images that hold the working directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.sandboxes import docker_daemon
from vime_agents.errors import SandboxDead, SandboxDiskFull, SandboxUnavailable
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.docker import DockerSandboxProvider

pytestmark = pytest.mark.integration


def snapshots(daemon: docker_daemon.Daemon) -> list[str]:
    """Images, tagged or not, that are snapshots."""
    return daemon.docker("images", "-aq", "--filter", "label=vime.snapshot").split()


async def test_a_fork_has_the_files_and_goes_its_own_way(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    first = await docker_provider.create(python_spec)
    await first.write("a/data.bin", bytes(range(256)), mode=0o640)
    await first.exec(["sh", "-c", "ln -s a/data.bin link; mkdir empty; chmod 700 empty"])
    snapshot = await first.snapshot()
    await first.write("a/data.bin", b"changed later")
    second = await docker_provider.create(python_spec, snapshot=snapshot)
    assert second.id != first.id
    assert await second.read("link") == bytes(range(256))
    seen = await second.exec(["stat", "-c", "%a %U %n", "a/data.bin", "empty"])
    assert seen.text == "640 UNKNOWN a/data.bin\n700 UNKNOWN empty\n"
    await second.write("mine", b"2")
    # A snapshot of a fork holds what the fork has, once.
    again = await second.snapshot()
    third = await docker_provider.create(python_spec, snapshot=again)
    assert (await third.exec(["ls"])).text == "a\nempty\nlink\nmine\n"
    assert (await first.exec(["ls"])).text == "a\nempty\nlink\n"
    await docker_provider.aclose()
    for each in (snapshot, again, snapshot):
        await docker_provider.delete_snapshot(each)
    assert snapshots(daemon) == []
    with pytest.raises(SandboxUnavailable, match="is not on this Docker daemon"):
        await docker_provider.create(python_spec, snapshot=snapshot)


async def test_restore_puts_the_files_back_and_ends_every_program(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(replace(python_spec, files={"start.txt": "1"}))
    snapshot = await sandbox.snapshot()
    await sandbox.write("more.txt", b"2")
    await sandbox.write("/tmp/more.txt", b"3")
    await sandbox.exec(["sh", "-c", "sleep 1000 >&- 2>&- &"])
    server = await sandbox.spawn(["sleep", "1001"])
    name = sandbox.id
    await sandbox.restore(snapshot)
    with pytest.raises(SandboxDead):
        await server.wait()
    assert sandbox.id == name
    assert [info.id for info in await docker_provider.list()] == [name]
    assert (await sandbox.exec(["sh", "-c", "ls . /tmp; pgrep sleep"])).text == ".:\nstart.txt\n\n/tmp:\n"
    await docker_provider.delete_snapshot(snapshot)
    assert await sandbox.alive()
    await sandbox.close()
    await docker_provider.delete_snapshot(snapshot)
    assert snapshots(daemon) == []


async def test_a_snapshot_that_does_not_fit_is_disk_full(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(python_spec)
    await sandbox.exec(["sh", "-c", "head -c 40000000 /dev/zero > big"])
    snapshot = await sandbox.snapshot()
    with pytest.raises(SandboxDiskFull):
        await docker_provider.create(replace(python_spec, memory_mb=64), snapshot=snapshot)
    await docker_provider.delete_snapshot(snapshot)


async def test_trees_go_in_and_out(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec, tmp_path: Path
) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "x.bin").write_bytes(bytes(range(256)) * 5000)
    sandbox = await docker_provider.create(python_spec)
    await sandbox.upload(tmp_path / "in", "here")
    assert (await sandbox.exec(["wc", "-c", "here/deep/x.bin"])).text == "1280000 here/deep/x.bin\n"
    await sandbox.download("here", tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "x.bin").read_bytes() == bytes(range(256)) * 5000
