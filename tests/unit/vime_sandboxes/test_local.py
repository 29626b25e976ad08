from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vime_agents.errors import (
    CommandNotFound,
    ConfigError,
    ContractError,
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxOutOfMemory,
    SandboxPermissionError,
    SandboxTimeout,
    SandboxUnavailable,
)
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import limits, profile, runner_bundle, runner_link
from vime_sandboxes import runner_frames as frames
from vime_sandboxes.io_thread import on_io_thread
from vime_sandboxes.local import LocalSandboxProvider


@pytest.fixture
async def provider():
    made = LocalSandboxProvider()
    yield made
    await made.aclose()


@pytest.fixture
async def sandbox(provider: LocalSandboxProvider):
    return await provider.create(SandboxSpec(memory_mb=128))


OTHERS: set[int] = set()
"""Children of this process that other tests' fixtures keep, such as a server for the whole run."""


@pytest.fixture(autouse=True)
def _note_others() -> None:
    gc.collect()  # what earlier tests dropped must not be closed in the middle of a count
    OTHERS.clear()
    OTHERS.update(child_processes())


def children() -> list[str]:
    """What this test's sandboxes left running or unreaped, as 'name state'."""
    return sorted(text for pid, text in child_processes().items() if pid not in OTHERS)


def child_processes() -> dict[int, str]:
    """Direct children of this process, zombies included: pid -> 'name state'."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if int(rest[1]) == os.getpid():
            found[int(stat.parent.name)] = f"{name} {rest[0]}"
    return found


async def no_more_than(num_fds: int, processes: list[str]) -> None:
    """Fails when descriptors or processes stay behind; what other tests left may go meanwhile."""
    for _ in range(200):
        left = (len(os.listdir("/proc/self/fd")), children())
        if left[0] <= num_fds and left[1] == processes:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"left behind: {left}, before: {(num_fds, processes)}")


def groups() -> list[Path]:
    return sorted(Path("/sys/fs/cgroup").glob(f"**/{limits.PREFIX}-{os.getpid()}-*"))


async def test_create_and_close_leave_no_process_no_descriptor_no_thread_and_no_group(provider) -> None:
    async def cycle() -> None:
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.exec(["true"])).ok
        await sandbox.close()

    await cycle()  # starts the input/output thread, and what else is made once
    before, num_threads = (len(os.listdir("/proc/self/fd")), children()), threading.active_count()
    for _ in range(20):
        await asyncio.gather(*(cycle() for _ in range(5)))
    assert (len(os.listdir("/proc/self/fd")), children()) == before
    # Those of the loop's executor, which grows up to its size (`ThreadPoolExecutor`), are kept.
    assert threading.active_count() <= num_threads + min(32, (os.cpu_count() or 1) + 4)
    assert groups() == []


async def test_failed_creation_leaves_nothing(provider, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await provider.create(SandboxSpec())).close()
    before = (len(os.listdir("/proc/self/fd")), children())
    monkeypatch.setattr(runner_bundle, "compiled", lambda: b"not a program")
    with pytest.raises(SandboxUnavailable, match="Bad magic number"):
        await provider.create(SandboxSpec())
    monkeypatch.setattr(profile, "RUNNER_PATH", "/proc/not/there")
    with pytest.raises(SandboxUnavailable, match=r"did not start.*user namespaces"):
        await provider.create(SandboxSpec())
    monkeypatch.undo()
    with pytest.raises(SandboxError):
        await provider.create(SandboxSpec(files={"/usr/forbidden": "x"}))
    await no_more_than(*before)
    assert groups() == []


async def test_cancelled_creation_leaves_nothing(provider) -> None:
    await (await provider.create(SandboxSpec())).close()
    before = (len(os.listdir("/proc/self/fd")), children())
    for delay_s in (0.0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.04):
        task = asyncio.create_task(provider.create(SandboxSpec()))
        await asyncio.sleep(delay_s)
        task.cancel()
        (made,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(made, BaseException):
            await made.close()
    await no_more_than(*before)


async def test_cancelled_close_goes_on(provider, sandbox) -> None:
    task = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await sandbox.close()
    assert children() == []


async def test_closed_while_it_is_restored_it_is_gone(provider, sandbox) -> None:
    snapshot = await sandbox.snapshot()
    for delay_s in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04):
        box = await provider.create(SandboxSpec(), snapshot=snapshot)
        restoring = asyncio.create_task(box.restore(snapshot))
        await asyncio.sleep(delay_s)
        await box.close()
        (problem,) = await asyncio.gather(restoring, return_exceptions=True)
        assert problem is None or isinstance(problem, SandboxDead)
    await provider.delete_snapshot(snapshot)
    await sandbox.close()
    assert children() == []


async def test_killed_runner_is_a_dead_sandbox_and_never_a_result(sandbox) -> None:
    running = asyncio.create_task(sandbox.exec(["sleep", "600"], timeout_s=600))
    await sandbox.exec(["true"])
    sandbox._box.kill()
    with pytest.raises(SandboxDead, match=f"{sandbox.id} is gone: it was killed"):
        await running
    with pytest.raises(SandboxDead):
        await sandbox.exec(["true"])
    assert not await sandbox.alive()
    await sandbox.close()
    assert children() == []


async def test_commands_cannot_kill_or_read_the_runner(sandbox) -> None:
    script = (
        "for n in $(seq 1 64); do kill -$n 1 2>/dev/null; done; "
        "cat /proc/1/environ /proc/1/mem /proc/1/fd/0; ls /proc/1/fd"
    )
    result = await sandbox.exec(["sh", "-c", script])
    assert result.stdout == b""
    assert result.stderr.count(b"Permission denied") == 4
    assert await sandbox.alive()


async def test_commands_inherit_no_descriptor(sandbox) -> None:
    result = await sandbox.exec(["sh", "-c", "ls -l /proc/$$/fd"])
    links = [line.split(" -> ")[1] for line in result.text.splitlines() if " -> " in line]
    assert len(links) == 3
    assert "memfd:stdin" in links[0]
    assert all(link.startswith("pipe:") for link in links[1:])


async def test_orphans_are_reaped(sandbox) -> None:
    await sandbox.exec(["sh", "-c", "for i in 1 2 3 4 5; do (setsid true &) ; done; sleep 0.2"])
    states = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/stat | grep -c ' Z ' || true"])
    assert states.text.strip() == "0"


async def test_oom_kill_is_named(sandbox) -> None:
    assert "memory" in sandbox.enforced, "this machine lets us make no memory control group"
    # Files in memory count for the sandbox but not for any process: only the group can stop what follows.
    fill = "head -c 30m /dev/zero > /tmp/a; head -c 30m /dev/zero > /dev/shm/b; head -c 60m /dev/zero > c"
    assert (await sandbox.exec(["sh", "-c", fill])).ok
    hog = ["python3", "-IS", "-c", "x = bytearray(b'x') * (100 << 20)"]
    result = await sandbox.exec(hog)
    assert (result.exit_code, result.signal, result.oom_killed) == (None, signal.SIGKILL, True)
    killed = await sandbox.exec(["sh", "-c", "kill -9 $$"])
    assert (killed.signal, killed.oom_killed) == (signal.SIGKILL, False)
    sandbox._box.kill()
    with pytest.raises(SandboxDead, match="killed for lack of memory"):
        await sandbox.exec(["true"])


_LASTING_MEMORY = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
while True:
    place = libc.shmat(libc.shmget(0, 4 << 20, 0o1600), None, 0)
    ctypes.memset(place, 1, 4 << 20)
    libc.shmdt(ctypes.c_void_p(place))
"""


async def test_a_sandbox_that_memory_runs_out_for_says_so(sandbox) -> None:
    # Shared memory outlives who made it: nothing is left but the runner to take memory from.
    result = await sandbox.exec(["python3", "-IS", "-c", _LASTING_MEMORY])
    assert result.oom_killed

    async def go_on() -> None:
        for _ in range(20):
            await sandbox.write("x", b"x" * (8 << 20))
            await sandbox.read("x")

    with pytest.raises(SandboxOutOfMemory, match=r"killed for lack of memory \(128 MB\)"):
        await go_on()
    with pytest.raises(SandboxOutOfMemory):
        await sandbox.exec(["true"])


async def test_files_beyond_the_limits_are_a_full_disk(provider) -> None:
    sandbox = await provider.create(SandboxSpec(memory_mb=64, max_file_mb=8))
    with pytest.raises(SandboxDiskFull, match="max_file_mb is 8"):
        await sandbox.write("large", b"x" * ((8 << 20) + 1))
    await sandbox.write("large", b"x" * (8 << 20))

    async def fill() -> None:
        for number in range(8):
            await sandbox.write(f"file-{number}", b"x" * (8 << 20))

    with pytest.raises(SandboxDiskFull, match="No space left"):
        await fill()


async def test_timeouts_have_their_numbers(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = int(Path(f"/proc/{sandbox._box.pid}/task/{sandbox._box.pid}/children").read_text())
    os.kill(inner, signal.SIGSTOP)
    monkeypatch.setattr(runner_link, "ANSWER_TIMEOUT_S", 0.2)
    with pytest.raises(SandboxTimeout) as caught:
        await sandbox.read("x")
    assert (caught.value.limit, caught.value.limit_s) == ("answer", 0.2)
    assert caught.value.elapsed_s is not None
    assert caught.value.elapsed_s >= 0.2


async def test_too_many_arguments_and_a_nul_are_results(sandbox) -> None:
    long = await sandbox.exec(["true", "x" * (1 << 18)])
    assert (long.exit_code, long.stdout) == (126, b"")
    assert b"Argument list too long" in long.stderr
    nul = await sandbox.exec(["true", "a\0b"])
    assert nul.exit_code == 126
    assert b"null byte" in nul.stderr


async def test_pipes_devices_folders_and_foreign_files_are_refused_without_blocking(sandbox) -> None:
    await sandbox.exec(["mkfifo", "fifo"])
    for path in ("fifo", "/dev/zero", "/tmp", "a\0b"):
        with pytest.raises(SandboxError, match="in the sandbox"):
            await sandbox.read(path)
    for path in ("fifo", "/dev/null", "/tmp"):
        with pytest.raises(SandboxError, match="in the sandbox"):
            await sandbox.write(path, b"x")
    for path in ("/usr/x", "/etc/passwd"):
        with pytest.raises(SandboxPermissionError):
            await sandbox.write(path, b"x")
    await sandbox.exec(["chmod", "000", "/work"])
    with pytest.raises(SandboxPermissionError):
        await sandbox.read("/work/secret")
    with pytest.raises(SandboxPermissionError):
        await sandbox.exec(["/etc/passwd"], cwd="/")


async def test_filling_the_working_directory_is_an_error_of_the_writer_only(sandbox) -> None:
    result = await sandbox.exec(["sh", "-c", "for i in 1 2 3; do head -c 60m /dev/zero > f$i; done; true"])
    assert b"No space left" in result.stderr
    with pytest.raises(SandboxError, match="No space left"):
        await sandbox.write("g", b"x" * (1 << 20))
    await sandbox.exec(["rm", "f1", "f2", "f3"])
    await sandbox.write("g", b"x" * (1 << 20))


@pytest.mark.parametrize("command", [[], "true"])
async def test_a_command_is_a_list(sandbox, command) -> None:
    with pytest.raises(ContractError, match="non-empty list"):
        await sandbox.exec(command)


async def test_large_stdin_arrives_and_too_large_is_refused(sandbox) -> None:
    data = os.urandom(runner_link.MAX_STDIN_BYTES)
    result = await sandbox.exec(["sha256sum"], stdin=data)
    assert result.text.split()[0] == hashlib.sha256(data).hexdigest()
    with pytest.raises(ContractError, match="write a file instead"):
        await sandbox.exec(["cat"], stdin=data + b"x")


async def test_a_silent_runner_is_a_timeout_and_then_dead(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = int(Path(f"/proc/{sandbox._box.pid}/task/{sandbox._box.pid}/children").read_text())
    os.kill(inner, signal.SIGSTOP)
    monkeypatch.setattr(runner_link, "ANSWER_TIMEOUT_S", 0.2)
    with pytest.raises(SandboxTimeout, match="did not answer"):
        await sandbox.exec(["true"], timeout_s=0.1)
    with pytest.raises(SandboxDead):
        await sandbox.exec(["true"])
    assert children() == []


async def test_a_runner_that_lies_about_lengths_is_dead(sandbox) -> None:
    connection = sandbox._link.connection
    huge = frames.HEADER.pack(1 << 31, 1, frames.DONE)

    async def listen() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(huge)
        await connection._listen(reader)

    await on_io_thread(listen())
    with pytest.raises(SandboxDead, match="broke the protocol: a frame of 2147483648 bytes"):
        await sandbox.exec(["true"])


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (SandboxSpec(image="python:3.12"), SandboxUnavailable, "runs no images"),
        (SandboxSpec(memory_mb=1), ConfigError, "memory_mb must be at least 32, got 1"),
        (SandboxSpec(max_processes=0), ConfigError, "max_processes must be positive, got 0"),
        (SandboxSpec(ttl_s=-1), ConfigError, "ttl_s must be positive"),
        (SandboxSpec(env={"A=B": "x"}), ConfigError, "'A=B'"),
    ],
)
async def test_a_spec_that_cannot_hold_is_refused(provider, spec, error, message) -> None:
    with pytest.raises(error, match=message):
        await provider.create(spec)


async def test_network_is_shared_only_when_asked(provider) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sandbox = await provider.create(SandboxSpec(network=True))
    program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('reached')"
    result = await sandbox.exec(["python3", "-IS", "-c", program])
    server.close()
    await server.wait_closed()
    assert result.text == "reached\n"
    assert "network" not in sandbox.enforced


async def test_sixteen_at_once_all_work(provider) -> None:
    async def one(number: int) -> str:
        sandbox = await provider.create(SandboxSpec(env={"N": str(number)}))
        return (await sandbox.exec(["sh", "-c", "echo $N"])).text.strip()

    assert await asyncio.gather(*map(one, range(16))) == [str(n) for n in range(16)]


_OWNER = """
import asyncio, sys
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.local import LocalSandboxProvider
async def main():
    sandbox = await LocalSandboxProvider().create(SandboxSpec())
    await sandbox.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"])
    print(sandbox._box.pid, sandbox._box.uid, flush=True)
    await sandbox.exec(["sleep", "600"], timeout_s=600)
asyncio.run(main())
"""


def processes_of(outer: int) -> set[int]:
    """A process and its descendants."""
    found = {outer}
    for pid in list(found):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found |= processes_of(child)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_an_owner_that_is_killed(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        outer = int(owner.stdout.readline().split()[0])
        inside = processes_of(outer)
        assert len(inside) >= 3  # bubblewrap, runner, the commands
        owner.send_signal(number)
        owner.wait()
    deadline = 200
    while deadline and any(alive(pid) for pid in inside):
        deadline -= 1
        threading.Event().wait(0.05)
    assert [pid for pid in inside if alive(pid)] == []
    limits.remove_orphans()
    assert sorted(Path("/sys/fs/cgroup").glob(f"**/{limits.PREFIX}-{owner.pid}-*")) == []


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_programs_are_found_as_execvp_finds_them(sandbox) -> None:
    for folder, mode in (("first", 0o644), ("second", 0o755)):
        await sandbox.write(f"{folder}/tool", b"#!/bin/sh\necho " + folder.encode(), mode=mode)
    path = "/nowhere:/etc/passwd:/work/first:/work/second"
    assert (await sandbox.exec(["tool"], env={"PATH": path})).text == "second\n"
    assert (await sandbox.exec(["second/tool"])).text == "second\n"
    with pytest.raises(SandboxPermissionError, match="may not run 'tool'"):
        await sandbox.exec(["tool"], env={"PATH": "/work/first"})
    with pytest.raises(CommandNotFound, match="no program 'tool'"):
        await sandbox.exec(["tool"], env={"PATH": ""})


_FETCH = """
import sys, urllib.error, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
except urllib.error.HTTPError as error: print(error.code)
"""


async def test_an_allow_list_lets_out_what_is_listed_also_after_a_restore(provider) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    spec = SandboxSpec(network=(f"127.0.0.1:{port}",), memory_mb=128, env={"NO_PROXY": "", "no_proxy": ""})
    async with server:
        sandbox = await provider.create(spec)
        assert "network" in sandbox.enforced

        async def fetch(url: str) -> str:
            result = await sandbox.exec(["python3", "-IS", "-c", _FETCH, url])
            return result.text.strip() or result.stderr.decode()

        assert await fetch(f"http://127.0.0.1:{port}/") == "hello"
        assert await fetch(f"http://localhost:{port}/") == "403"
        snapshot = await sandbox.snapshot()
        await sandbox.restore(snapshot)
        await provider.delete_snapshot(snapshot)
        async with asyncio.timeout(30):
            while await fetch(f"http://127.0.0.1:{port}/") != "hello":  # the way out is opened again
                pass
        direct = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        assert not (await sandbox.exec(["python3", "-IS", "-c", direct])).ok
        await sandbox.close()
    with pytest.raises(ConfigError):
        await provider.create(SandboxSpec(network=("http://a/b",)))
