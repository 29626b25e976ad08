"""What Docker sandboxes hold beyond the contract's checks: users, processors, memory, networks, time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.sandboxes import docker_daemon
from vime_agents.errors import ConfigError, SandboxDead, SandboxUnsupported
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.docker import DockerSandboxProvider

pytestmark = pytest.mark.integration


async def test_a_command_can_be_another_user_and_still_has_no_rights(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(python_spec)
    await sandbox.write("mine.txt", b"", mode=0o600)
    script = "id -u; grep CapEff /proc/self/status; cat mine.txt; touch /usr/x; kill -9 1; echo $?"
    result = await sandbox.exec(["sh", "-c", script], user="0", stdin=b"")
    assert result.text == "0\nCapEff:\t0000000000000000\n1\n"
    assert b"mine.txt: Permission denied" in result.stderr
    assert await sandbox.alive()
    timed_out = await sandbox.exec(["sh", "-c", "setsid sleep 1001 & sleep 1002"], user="4711", timeout_s=1.0)
    assert timed_out.timed_out
    assert (await sandbox.exec(["pgrep", "sleep"], user="4711")).text == ""


async def test_an_unknown_user_is_refused(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(python_spec)
    with pytest.raises(SandboxUnsupported, match="nobody-knows"):
        await sandbox.exec(["true"], user="nobody-knows")
    assert await sandbox.alive()
    with pytest.raises(SandboxUnsupported, match="nobody-knows"):
        await docker_provider.create(replace(python_spec, user="nobody-knows"))
    root = await docker_provider.create(replace(python_spec, user="root"))
    assert (await root.exec(["id", "-u"])).text == "0\n"
    await root.write("x", b"1")


async def test_processor_time_is_bounded(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(replace(python_spec, cpus=0.25))
    assert "cpus" in sandbox.enforced
    program = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    before = time.monotonic()
    assert (await sandbox.exec(["python3", "-c", program])).ok
    assert time.monotonic() - before > 1.0
    info = await sandbox.info()
    assert info.cpu_s is not None
    assert 0.5 < info.cpu_s < 5
    assert info.memory_peak_bytes is not None
    assert info.processes == 0


async def test_running_out_of_memory_is_told_apart_from_a_kill(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(replace(python_spec, memory_mb=64))
    killed = await sandbox.exec(["sh", "-c", "kill -9 $$"])
    assert (killed.ended_by, killed.oom_killed) == ("signal 9", False)
    # Each process by itself stays below its own limit.
    hold = "import time; x = bytearray(b'x') * (40 << 20); time.sleep(1)"
    script = f'for i in 1 2 3 4; do python3 -c "{hold}" & done; wait'
    await sandbox.exec(["sh", "-c", script])
    info = await sandbox.info()
    assert info.oom_kills is not None
    assert info.oom_kills >= 1
    hog = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor i in range(0, 1 << 30, 4096): m[i] = 1"
    result = await sandbox.exec(["python3", "-c", hog])
    assert (result.ended_by, result.signal) == ("out of memory", 9)
    assert await sandbox.alive()


async def test_the_runner_cannot_be_killed_traced_or_read(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(python_spec)
    program = (
        "import ctypes, os\n"
        "for number in range(1, 65):\n"
        "    try: os.kill(1, number)\n"
        "    except OSError: pass\n"
        "ptrace = ctypes.CDLL(None, use_errno=True).ptrace\n"
        "print(ptrace(16, 1, 0, 0))\n"  # PTRACE_ATTACH
        "for name in ('environ', 'mem', 'fd/0', 'cwd/x'):\n"
        "    try: open(f'/proc/1/{name}', 'rb'); print('opened', name)\n"
        "    except PermissionError: pass\n"
    )
    result = await sandbox.exec(["python3", "-c", program])
    assert result.text == "-1\n"
    assert await sandbox.alive()


async def test_volumes_of_an_image_are_in_memory_and_bounded(
    docker_provider: DockerSandboxProvider, daemon: docker_daemon.Daemon, tmp_path: Path
) -> None:
    folder = docker_daemon.busybox_context(tmp_path / "volume")
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + "VOLUME /data\n")
    spec = SandboxSpec(backend="docker", build=str(folder), memory_mb=64, max_file_mb=1000)
    sandbox = await docker_provider.create(spec)
    result = await sandbox.exec(["sh", "-c", "head -c 100000000 /dev/zero > /data/x; stat -c %s /data/x"])
    assert int(result.text) <= 16 << 20
    assert daemon.docker("volume", "ls", "-q") == ""


async def test_a_network_is_there_only_when_asked_for(
    docker_provider: DockerSandboxProvider, daemon: docker_daemon.Daemon, python_spec: SandboxSpec
) -> None:
    daemon.docker("network", "create", "vime-test", "--internal", "--subnet", "198.18.7.0/24")
    try:
        spec = replace(python_spec, network=True, options={"network": "vime-test"})
        open_one = await docker_provider.create(spec)
        assert "network" not in open_one.enforced
        assert "198.18.7." in (await open_one.exec(["cat", "/proc/net/fib_trie"])).text
        closed = await docker_provider.create(python_spec)
        assert "198.18.7." not in (await closed.exec(["cat", "/proc/net/fib_trie"])).text
        await docker_provider.aclose()
    finally:
        daemon.docker("network", "rm", "vime-test")


async def test_a_list_of_hosts_is_the_only_way_out(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
    allowed, other = (server.sockets[0].getsockname()[1] for server in servers)
    fetch = (
        "import sys, urllib.request\n"
        "proxy = urllib.request.ProxyHandler({'http': 'http://127.0.0.1:3128'})\n"
        "try: print(urllib.request.build_opener(proxy).open(sys.argv[1], timeout=20).read())\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    spec = replace(python_spec, network=(f"127.0.0.1:{allowed}",))
    sandbox = await docker_provider.create(spec)
    assert "network" in sandbox.enforced
    assert (await sandbox.exec(["sh", "-c", "echo $https_proxy"])).text == "http://127.0.0.1:3128\n"

    async def fetched(port: int) -> str:
        command = ["python3", "-c", fetch, f"http://127.0.0.1:{port}/"]
        return (await sandbox.exec(command, env={"NO_PROXY": "", "no_proxy": ""})).text

    assert [await fetched(allowed), await fetched(other)] == ["b'hello'\n", "HTTPError\n"]
    snapshot = await sandbox.snapshot()
    await sandbox.restore(snapshot)
    assert [await fetched(allowed), await fetched(other)] == ["b'hello'\n", "HTTPError\n"]
    await docker_provider.aclose()
    await docker_provider.delete_snapshot(snapshot)
    with pytest.raises(ConfigError):
        await docker_provider.create(replace(python_spec, network=("http://not a host",)))
    for server in servers:
        server.close()


async def test_the_end_can_be_moved_and_others_see_it(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(replace(python_spec, ttl_s=20.0))
    await sandbox.extend(5000.0)
    (seen,) = await docker_provider.list()
    assert (seen.id, seen.expires_at) == (sandbox.id, round((await sandbox.info()).expires_at or 0))
    assert (seen.expires_at or 0) - time.time() > 4000
    await sandbox.extend(0.5)
    with pytest.raises(SandboxDead, match="its time to live is over"):
        await sandbox.exec(["sleep", "60"])
    assert await docker_provider.list() == []
    other = await docker_provider.create(python_spec)
    await other.extend(100.0)
    await docker_provider.remove(other.id)
    assert await docker_provider.list() == []


async def test_programs_that_go_on_are_fed_read_and_ended(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec
) -> None:
    sandbox = await docker_provider.create(python_spec)
    process = await sandbox.spawn(["sh", "-c", 'echo up; while read -r l; do echo "<$l>"; done; exit 5'])
    pieces = process.output()
    assert await anext(pieces) == ("stdout", b"up\n")
    await process.write(b"a b\n")
    assert await anext(pieces) == ("stdout", b"<a b>\n")
    await process.close_stdin()
    assert [piece async for piece in pieces] == []
    result = await process.wait()
    assert (result.exit_code, result.stdout_bytes) == (5, 9)
    killed = await sandbox.spawn(["sleep", "1000"])
    await killed.kill(15)
    assert (await asyncio.wait_for(killed.wait(), 20)).signal == 15
    limited = await sandbox.spawn(["sleep", "1000"], timeout_s=0.5)
    assert (await asyncio.wait_for(limited.wait(), 20)).timed_out
