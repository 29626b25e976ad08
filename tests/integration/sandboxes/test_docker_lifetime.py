"""What is left of Docker sandboxes when owners, daemons and callers come to their end: nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sandboxes import docker_daemon
from vime_agents.errors import SandboxDead, SandboxError, SandboxTimeout, SandboxUnreachable
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import docker_container
from vime_sandboxes.docker import DockerSandboxProvider

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0


def names(daemon: docker_daemon.Daemon) -> list[str]:
    """Containers of vime-agents, whatever state they are in."""
    listed = daemon.docker("ps", "-a", "--format", "{{.Names}}").split()
    return [name for name in listed if name.startswith("vime-")]


def states(daemon: docker_daemon.Daemon) -> list[str]:
    """Of all containers."""
    return daemon.docker("ps", "-a", "--format", "{{.State}}").split()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def start_owner(count: int) -> subprocess.Popen[bytes]:
    paths = [str(ROOT / part) for part in ("", "sandboxes")]
    return subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("docker_owner.py")),
            docker_daemon.PYTHON_IMAGE,
            str(count),
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


async def test_sigkill_of_the_owner_ends_its_sandboxes_at_once(daemon: docker_daemon.Daemon) -> None:
    owner = start_owner(3)
    assert owner.stdout is not None
    up = {(await asyncio.to_thread(owner.stdout.readline)).decode().strip() for _ in range(3)}
    assert set(names(daemon)) == up
    owner.kill()
    owner.wait()
    owner.stdout.close()
    await until(lambda: names(daemon) == [], "containers outlive their owner")


async def test_sigkill_at_any_moment_leaves_nothing_that_runs(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider
) -> None:
    choose = random.Random(5)
    for _ in range(8):
        owner = start_owner(4)
        assert owner.stdout is not None
        # Anywhere from the first container's creation on.
        await until(lambda: names(daemon) != [], "no container came")
        await asyncio.sleep(choose.random())
        owner.kill()
        owner.wait()
        owner.stdout.close()
        # What was created and never started has no process that could notice: that is the reaper's.
        await until(lambda: set(states(daemon)) <= {"created"}, "something runs without an owner")
        for info in await docker_provider.list():
            await docker_provider.remove(info.id)
        await until(lambda: names(daemon) == [], "containers are left")


async def test_a_cancelled_creation_leaves_nothing(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    choose = random.Random(3)
    for _ in range(10):
        task = asyncio.create_task(docker_provider.create(python_spec))
        await asyncio.sleep(choose.random() * 0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await docker_provider.aclose()
    await until(lambda: names(daemon) == [], "containers are left")


async def test_closing_twice_and_removing_from_outside(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(python_spec, labels={"episode": "e1"})
    (info,) = await docker_provider.list()
    assert (info.id, info.state, info.labels["episode"]) == (sandbox.id, "running", "e1")
    assert info.expires_at is not None
    assert abs(info.expires_at - time.time() - python_spec.ttl_s) < 120
    other = DockerSandboxProvider()
    running = asyncio.create_task(sandbox.exec(["sleep", "100"], timeout_s=100))
    await other.remove(sandbox.id)
    await other.remove(sandbox.id)
    with pytest.raises(SandboxDead, match="is gone"):
        await running
    assert not await sandbox.alive()
    assert await other.list() == []
    await sandbox.close()
    await sandbox.close()
    await other.aclose()


@pytest.fixture
def own_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[docker_daemon.Daemon]:
    """A daemon that a test may stop and start."""
    with docker_daemon.running_daemon() as running:
        running.import_image(docker_daemon.python_root_tar(), docker_daemon.PYTHON_IMAGE)
        monkeypatch.setenv("DOCKER_HOST", running.host)
        yield running


async def test_a_daemon_that_stops_is_a_typed_error_and_the_provider_goes_on_after_it(
    own_daemon: docker_daemon.Daemon, python_spec: SandboxSpec
) -> None:
    provider = DockerSandboxProvider()
    sandbox = await provider.create(python_spec)
    running = asyncio.create_task(sandbox.exec(["sleep", "100"], timeout_s=100))
    await sandbox.exec(["true"])
    await asyncio.to_thread(own_daemon.terminate)
    with pytest.raises((SandboxUnreachable, SandboxDead)):
        await running
    with pytest.raises(SandboxUnreachable):
        await provider.create(python_spec)
    assert not await sandbox.alive()
    await asyncio.to_thread(own_daemon.start)
    again = await provider.create(python_spec)
    assert (await again.exec(["echo", "back"])).stdout == b"back\n"
    await provider.aclose()
    await until(lambda: names(own_daemon) == [], "containers are left")


async def test_a_daemon_that_hangs_is_a_timeout_and_what_it_creates_later_is_removed(
    own_daemon: docker_daemon.Daemon, python_spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_sandboxes.docker_engine.ANSWER_TIMEOUT_S", 2.0)
    provider = DockerSandboxProvider()
    group = own_daemon.process.pid
    create = docker_container.create

    def create_in_a_daemon_that_hangs(*arguments: Any) -> str:
        os.killpg(group, signal.SIGSTOP)
        return create(*arguments)

    monkeypatch.setattr(docker_container, "create", create_in_a_daemon_that_hangs)
    try:
        with pytest.raises(SandboxTimeout, match="no answer from the Docker daemon within 2 s") as caught:
            await provider.create(python_spec)
        assert (caught.value.limit, caught.value.limit_s) == ("daemon answer", 2.0)
    finally:
        os.killpg(group, signal.SIGCONT)
    created = ["events", "--since", "1h", "--until", "0s", "--filter", "event=create"]
    await until(lambda: own_daemon.docker(*created).strip() != "", "the daemon never created it")
    await until(lambda: names(own_daemon) == [], "a late container is left")
    await provider.aclose()


async def test_cycles_leak_neither_descriptors_nor_threads(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    async def cycle() -> None:
        provider = DockerSandboxProvider()
        made = await asyncio.gather(*(provider.create(python_spec) for _ in range(3)))
        await asyncio.gather(*(s.exec(["true"]) for s in made))
        await provider.aclose()

    await cycle()
    before = (len(os.listdir("/proc/self/fd")), threading.active_count())
    for _ in range(3):
        await cycle()

    def none_more() -> bool:
        gc.collect()  # threads of an executor end when it is collected
        return len(os.listdir("/proc/self/fd")) <= before[0] and threading.active_count() <= before[1]

    await until(none_more, "descriptors or threads are left")


async def test_many_at_once_all_come_up_and_go(
    daemon: docker_daemon.Daemon, docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    spec = replace(python_spec, memory_mb=64)
    made = await asyncio.gather(*(docker_provider.create(spec) for _ in range(10)))
    said = await asyncio.gather(*(s.exec(["echo", s.id]) for s in made))
    assert [r.text.strip() for r in said] == [s.id for s in made]
    assert len({s.id for s in made}) == 10
    await docker_provider.aclose()
    assert names(daemon) == []


async def test_a_daemon_over_tcp(
    daemon: docker_daemon.Daemon, python_spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    relays: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relays.append(asyncio.create_task(relay(reader, writer)))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(daemon.host.removeprefix("unix://"))

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
            target.write_eof()

        try:
            await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        except OSError:
            pass  # one side is gone
        finally:
            writer.close()
            up_writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
    provider = DockerSandboxProvider()
    sandbox = await provider.create(python_spec)
    assert (await sandbox.exec(["cat"], stdin=b"over tcp")).stdout == b"over tcp"
    assert (await sandbox.exec(["cat"], stdin=b"an exec", user="0")).stdout == b"an exec"
    await provider.aclose()
    server.close()
    for task in relays:
        task.cancel()
    await asyncio.gather(*relays, return_exceptions=True)
    assert names(daemon) == []


async def test_no_daemon_is_unavailable_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/docker.sock")
    provider = DockerSandboxProvider()
    with pytest.raises(SandboxError, match=r"no Docker daemon at unix:///no/such/docker.sock.*podman"):
        await provider.preflight()
    await provider.aclose()
