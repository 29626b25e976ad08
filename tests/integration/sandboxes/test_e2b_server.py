"""E2B's own client, unmodified, against our server on local sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import (
    ALL_TRAFFIC,
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    TimeoutException,
)
from e2b.sandbox.sandbox_api import SandboxQuery, SandboxState

from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.e2b_server.app import create_app
from vime_sandboxes.e2b_server.serve import serving
from vime_sandboxes.local import LocalSandboxProvider

pytestmark = pytest.mark.integration
KEY = "e2b_test"
BASE = SandboxSpec(memory_mb=256, max_processes=64)


class Client:
    """`AsyncSandbox` with the address and the key of one server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.options: dict[str, Any] = {"api_url": url, "sandbox_url": url, "api_key": KEY}

    async def create(self, template: str | None = None, **more: Any) -> AsyncSandbox:
        return await AsyncSandbox.create(template, **{**self.options, **more})

    async def list(self, **query: Any) -> list[str]:
        pages, found = AsyncSandbox.list(query=SandboxQuery(**query), limit=2, **self.options), []
        while pages.has_next:
            found += [info.sandbox_id for info in await pages.next_items()]
        return found


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    provider = LocalSandboxProvider()
    app = create_app(provider, api_key=KEY, templates={"base": BASE}, max_sandboxes=40)
    async with serving(app) as url:
        yield Client(url)
    await provider.aclose()


@pytest.fixture
async def sandbox(client: Client) -> AsyncSandbox:
    return await client.create()


async def until(condition: Any, limit_s: float = 20.0) -> None:
    """Poll until `await condition()` holds."""
    async with asyncio.timeout(limit_s):
        while not await condition():
            await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------- commands


async def test_output_arrives_while_the_command_runs(sandbox: AsyncSandbox) -> None:
    seen: list[tuple[str, str]] = []
    first = asyncio.Event()

    def note(kind: str, text: str) -> None:
        seen.append((kind, text))
        first.set()

    handle = await sandbox.commands.run(
        "echo one; read line; echo $line >&2",
        background=True,
        stdin=True,
        on_stdout=lambda text: note("out", text),
        on_stderr=lambda text: note("err", text),
    )
    await asyncio.wait_for(first.wait(), 20)
    assert seen == [("out", "one\n")]
    await handle.send_stdin("two\n")
    result = await handle.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\n", "two\n")


async def test_an_exit_status_is_the_commands_own(sandbox: AsyncSandbox) -> None:
    with pytest.raises(CommandExitException) as caught:
        await sandbox.commands.run("echo bad >&2; exit 3")
    assert (caught.value.exit_code, caught.value.stderr) == (3, "bad\n")


async def test_environment_folder_and_quoting(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run("echo \"$A|$PWD\"; echo 'a  b'", envs={"A": "x y"}, cwd="/tmp")
    assert result.stdout == "x y|/tmp\na  b\n"


async def test_a_timeout_kills_the_command(sandbox: AsyncSandbox) -> None:
    with pytest.raises(TimeoutException):
        await sandbox.commands.run("sleep 600", timeout=0.5)

    async def gone() -> bool:
        listing = await sandbox.commands.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        return "sleep 600" not in listing.stdout

    await until(gone)


async def test_input_is_ended_and_programs_are_listed(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("cat", background=True, stdin=True)
    assert [(p.pid, p.cmd, p.args) for p in await sandbox.commands.list()] == [
        (handle.pid, "/bin/bash", ["-l", "-c", "cat"])
    ]
    await handle.send_stdin("á")
    async with sandbox.commands.stream_input(handle.pid) as stream:
        await stream.send("b\n")
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "áb\n"
    assert await sandbox.commands.list() == []


async def test_a_command_can_be_left_and_joined_again(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    await handle.disconnect()
    joined = await sandbox.commands.connect(handle.pid)
    await joined.send_stdin("it\n")
    assert (await joined.wait()).stdout == "got it\n"
    with pytest.raises(NotFoundException):
        await sandbox.commands.connect(handle.pid)


async def test_kill_is_a_signal_and_happens_once(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("sleep 600", background=True)
    assert await handle.kill()
    with pytest.raises(CommandExitException) as caught:
        await handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    assert not await sandbox.commands.kill(handle.pid)


async def test_much_output_arrives_whole(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
    assert result.stdout == "x" * 5_000_000


async def test_what_cannot_be_is_refused(sandbox: AsyncSandbox) -> None:
    with pytest.raises(AuthenticationException, match="invalid username: 'nobody-there'"):
        await sandbox.commands.run("true", user="nobody-there")
    with pytest.raises(InvalidArgumentException, match="cwd '/no/such' does not exist"):
        await sandbox.commands.run("true", cwd="/no/such")
    with pytest.raises(SandboxException, match="pseudo-terminals"):
        await sandbox.pty.create(size=_size(), on_data=lambda _: None)
    with pytest.raises(SandboxException, match="Not implemented"):
        await sandbox.files.watch_dir(".", on_event=lambda _: None)


def _size() -> Any:
    from e2b import PtySize

    return PtySize(rows=24, cols=80)


# ------------------------------------------------------------------------------------------- files


async def test_files_keep_their_bytes(sandbox: AsyncSandbox) -> None:
    data = bytes(range(256)) * 5000
    for name, more in (("a", {}), ("b", {"use_octet_stream": True}), ("c", {"gzip": True})):
        info = await sandbox.files.write(f"new/{name}", data, **more)
        assert (info.name, info.path) == (name, f"/work/new/{name}")
        assert bytes(await sandbox.files.read(f"new/{name}", format="bytes")) == data
    await sandbox.files.write_files([{"path": "m/1", "data": "x"}, {"path": "m/2", "data": b"y"}])
    assert (await sandbox.commands.run("cat m/1 m/2")).stdout == "xy"
    with pytest.raises(FileNotFoundException):
        await sandbox.files.read("none")
    with pytest.raises(SandboxException):
        await sandbox.files.read("new")


async def test_the_home_of_e2b_is_the_working_directory(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("/home/user/a/b.txt", "here")
    result = await sandbox.commands.run(
        "cat /home/user/a/b.txt; cat a/b.txt; cat ~/a/b.txt", cwd="/home/user"
    )
    assert result.stdout == "here" * 3
    assert await sandbox.files.read("a/b.txt") == "here"


async def test_folders_are_listed_made_moved_and_removed(sandbox: AsyncSandbox) -> None:
    assert await sandbox.files.make_dir("d/e")
    assert not await sandbox.files.make_dir("d/e")
    await sandbox.files.write("d/e/f.txt", "12345")
    await sandbox.commands.run("ln -s e/f.txt d/link")
    entries = {e.path: e for e in await sandbox.files.list("d", depth=2)}
    assert sorted(entries) == ["/work/d/e", "/work/d/e/f.txt", "/work/d/link"]
    assert entries["/work/d/e/f.txt"].size == 5
    assert entries["/work/d/link"].symlink_target == "/work/d/e/f.txt"
    moved = await sandbox.files.rename("d/e/f.txt", "g/h.txt")
    assert (moved.path, moved.permissions) == ("/work/g/h.txt", "-rw-r--r--")
    assert await sandbox.files.exists("g/h.txt")
    await sandbox.files.remove("g")
    assert not await sandbox.files.exists("g")
    with pytest.raises(FileNotFoundException):
        await sandbox.files.list("g")


# ------------------------------------------------------------------------------------------- life


async def test_sandboxes_are_found_by_metadata_state_and_order(client: Client) -> None:
    made = [(await client.create(metadata={"run": "a b&c", "n": str(n)})).sandbox_id for n in range(3)]
    await client.create(metadata={"run": "other"})
    assert await client.list(metadata={"run": "a b&c"}) == made[::-1]
    assert await client.list(metadata={"run": "a b&c", "n": "1"}) == [made[1]]
    await AsyncSandbox.pause(made[0], **client.options)
    assert await client.list(state=[SandboxState.PAUSED]) == [made[0]]
    assert len(await client.list(state=[SandboxState.RUNNING])) == 3


async def test_a_killed_sandbox_is_gone_in_every_way(client: Client, sandbox: AsyncSandbox) -> None:
    running = asyncio.create_task(sandbox.commands.run("sleep 600", timeout=0))
    await until(sandbox.commands.list)
    assert await sandbox.kill()
    assert not await sandbox.kill()
    assert not await sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        await running
    with pytest.raises(SandboxNotRunningException):
        await sandbox.files.read("x")
    with pytest.raises(SandboxNotFoundException):
        await sandbox.get_info()
    assert await client.list() == []


async def test_time_to_live_ends_or_pauses_it(client: Client) -> None:
    first = await client.create(timeout=1)
    second = await client.create(timeout=1, lifecycle={"on_timeout": "pause"})
    third = await client.create(timeout=1)
    await third.set_timeout(100)
    await until(lambda: _not(first.is_running()))
    await until(lambda: _not(second.is_running()))
    assert await client.list(state=[SandboxState.PAUSED]) == [second.sandbox_id]
    assert await third.is_running()
    info = await third.get_info()
    assert 90 < (info.end_at - info.started_at).total_seconds() <= 110


async def _not(question: Any) -> bool:
    return not await question


async def test_pause_keeps_the_files_and_connect_brings_them_back(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("kept.txt", "here")
    assert await sandbox.pause()
    assert not await sandbox.pause()
    assert not await sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        await sandbox.commands.run("true")
    await sandbox.connect(timeout=60)
    assert await sandbox.files.read("kept.txt") == "here"


async def test_snapshots_and_forks_start_from_the_files(client: Client, sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("n.txt", "1")
    taken = await sandbox.create_snapshot(name="mine")
    await sandbox.files.write("n.txt", "2")
    again = await client.create(taken.snapshot_id)
    assert await again.files.read("n.txt") == "1"
    pages = sandbox.list_snapshots()
    assert [(s.snapshot_id, s.names) for s in await pages.next_items()] == [(taken.snapshot_id, ["mine"])]
    forks = await sandbox.fork(count=2)
    assert [await f.files.read("n.txt") for f in forks if isinstance(f, AsyncSandbox)] == ["2", "2"]
    assert await AsyncSandbox.delete_snapshot(taken.snapshot_id, **client.options)
    assert not await AsyncSandbox.delete_snapshot(taken.snapshot_id, **client.options)
    with pytest.raises(SandboxException, match="404"):
        await client.create(taken.snapshot_id)


async def test_the_same_idempotency_key_makes_one_sandbox(client: Client) -> None:
    made = await asyncio.gather(*(client.create(idempotency_key="same") for _ in range(3)))
    assert len({s.sandbox_id for s in made}) == 1
    assert len(await client.list()) == 1


async def test_many_at_once_and_no_more_than_allowed(client: Client) -> None:
    made = await asyncio.gather(*(client.create() for _ in range(32)))
    results = await asyncio.gather(*(s.commands.run(f"echo {n}") for n, s in enumerate(made)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(32)]
    await asyncio.gather(*(client.create() for _ in range(8)))
    with pytest.raises(RateLimitException, match="maximum number"):
        await client.create(retries=0)
    await made[0].kill()
    await client.create()


async def test_requests_that_make_no_sense_are_refused(client: Client) -> None:
    with pytest.raises(SandboxException, match="404: template 'other' not found"):
        await client.create("other")
    with pytest.raises(SandboxException, match="no network"):
        await client.create(allow_internet_access=True)
    with pytest.raises(SandboxException, match="timeout must be between"):
        await client.create(timeout=10**9)
    with pytest.raises(SandboxException, match="volumeMounts is not offered"):
        await client.create(volume_mounts={"/v": "volume"})


async def test_a_template_with_network_gives_it_to_who_asks() -> None:
    provider = LocalSandboxProvider()
    templates = {"open": SandboxSpec(memory_mb=256, network=True)}
    script = "ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1"
    async with serving(create_app(provider, api_key=KEY, templates=templates)) as url:
        client = Client(url)
        asked = await client.create("open", allow_internet_access=True)
        silent = await client.create("open")
        some = await client.create("open", network={"allow_out": ["example.org"], "deny_out": [ALL_TRAFFIC]})
        proxy = (await some.commands.run("echo $HTTPS_PROXY")).stdout
        seen = [(await s.commands.run(script)).stdout.split() for s in (asked, silent)]
    await provider.aclose()
    assert proxy.startswith("http://127.0.0.1:")
    assert seen[1] == ["lo"]
    assert len(seen[0]) > 1


async def test_metrics_have_the_limits(sandbox: AsyncSandbox) -> None:
    (sample,) = await sandbox.get_metrics()
    assert (sample.cpu_count, sample.mem_total) == (1, 256 << 20)


# ------------------------------------------------------------------------------------------- who may


async def test_keys_and_tokens_are_checked(client: Client, sandbox: AsyncSandbox) -> None:
    with pytest.raises(AuthenticationException):
        await client.create(api_key="wrong")
    other = await client.create()
    for token, status in ((None, 401), (other._envd_access_token, 401), (sandbox._envd_access_token, 204)):
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id} | ({"X-Access-Token": token} if token else {})
        async with httpx.AsyncClient(base_url=client.url) as http:
            assert (await http.get("/health", headers=headers)).status_code == status
            assert (await http.get("/v2/sandboxes", headers=headers)).status_code == 401


# ------------------------------------------------------------------------------------------- its end

_SERVER = """\
import sys
from vime_sandboxes.e2b_server.serve import serve
from vime_sandboxes.local import LocalSandboxProvider
serve(LocalSandboxProvider(), port=0, announce=lambda text: print(text, flush=True))
"""


@contextlib.contextmanager
def server_process() -> Any:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        words = dict(w.split("=", 1) for w in process.stdout.readline().split()[1:])
        try:
            yield process, {"api_url": words["E2B_API_URL"], "api_key": words["E2B_API_KEY"]}
        finally:
            process.kill()


def processes_marked(mark: str) -> int:
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += mark.encode() in (folder / "cmdline").read_bytes()
    return count


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_outlives_the_server(how: signal.Signals) -> None:
    mark = f"1{time.time_ns()}"
    with server_process() as (process, options):
        sandbox = await AsyncSandbox.create(**options, sandbox_url=options["api_url"])
        await sandbox.commands.run(f"sleep {mark}", background=True)

        async def started() -> bool:
            return processes_marked(f"sleep\0{mark}") > 0

        await until(started)
        process.send_signal(how)
        await asyncio.to_thread(process.wait, 30)

    async def ended() -> bool:
        return processes_marked(mark) == 0

    await until(ended)
