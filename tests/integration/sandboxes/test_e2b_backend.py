"""The E2B backend, by the real client, against our server on local sandboxes, with faults between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from e2b import AsyncSandbox

from vime_agents.errors import (
    ConfigError,
    SandboxBackendError,
    SandboxDead,
    SandboxError,
    SandboxNotReady,
    SandboxUnavailable,
    SandboxUnreachable,
    SandboxUnsupported,
)
from vime_agents.sandbox import Sandbox, SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS
from vime_sandboxes import e2b_cloud, e2b_errors, ownership
from vime_sandboxes.e2b import E2BSandboxProvider
from vime_sandboxes.e2b_server.app import create_app
from vime_sandboxes.e2b_server.serve import serving
from vime_sandboxes.local import LocalSandboxProvider

pytestmark = pytest.mark.integration
KEY = "e2b_test"
SPEC = SandboxSpec(backend="e2b", memory_mb=256)
Answer = tuple[int, dict[str, str], bytes]


class Between:
    """Between the client and the server: answers in the server's place, and notes what was asked."""

    def __init__(self, app: Any) -> None:
        self.seen: list[str] = []
        self.answers: list[tuple[str, Answer | None]] = []
        """Request line beginning -> what is answered to the first request that has it; None: it
        is served, but the answer is lost."""
        self._app = app

    async def aclose(self) -> None:
        await self._app.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        line = f"{scope.get('method')} {scope.get('path')}"
        self.seen.append(line)
        for item in self.answers:
            if scope["type"] == "http" and line.startswith(item[0]):
                self.answers.remove(item)
                if item[1] is None:
                    await self._app(scope, receive, _nowhere)
                    await _answer(send, (200, {"content-length": "10"}, b""))  # and no more of it
                    return
                await _answer(send, item[1])
                return
        await self._app(scope, receive, send)

    def asked(self, beginning: str) -> int:
        return sum(line.startswith(beginning) for line in self.seen)


async def _nowhere(_: Any) -> None:
    pass


async def _answer(send: Any, answer: Answer) -> None:
    status, headers, body = answer
    pairs = [(k.encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def refusal(status: int, **headers: str) -> Answer:
    body = json.dumps({"code": status, "message": f"refused with {status}"}).encode()
    return status, {"content-type": "application/json", **headers}, body


class Wire:
    """A relay for bytes in front of the server, whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._port, self._writers = port, set[asyncio.StreamWriter]()

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def close(self, *, cut: bool = True) -> None:
        self._server.close()
        if cut:
            self.cut()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, their_writer}
        await asyncio.gather(_copy(reader, their_writer), _copy(their_reader, writer))
        self._writers -= {writer, their_writer}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class World:
    """Server, relay and provider of one test."""

    def __init__(
        self, local: LocalSandboxProvider, between: Between, wire: Wire, direct: str, through: str
    ) -> None:
        self.between, self.wire, self.direct = between, wire, direct
        self.local = local
        self.provider = E2BSandboxProvider(api_key=KEY, api_url=direct, sandbox_url=through)
        self.options: dict[str, Any] = {"api_key": KEY, "api_url": direct}

    async def remaining(self) -> list[str]:
        return [s.sandbox_id for s in await AsyncSandbox.list(**self.options).next_items()]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    local = LocalSandboxProvider()
    template = SandboxSpec(memory_mb=512, max_processes=256)
    between = Between(create_app(local, api_key=KEY, templates={"base": template}))
    async with serving(between) as url:  # pyright: ignore[reportArgumentType] - as good as a server
        wire = Wire(int(url.rpartition(":")[2]))
        made = World(local, between, wire, url, await wire.open())
        yield made
        await made.provider.aclose()
        await wire.close()
    await local.aclose()


async def until(condition: Callable[[], Any], limit_s: float = 20.0) -> None:
    """Poll until `await condition()` holds."""
    async with asyncio.timeout(limit_s):
        while not await condition():
            await asyncio.sleep(0.02)


async def busy(sandbox: Sandbox, path: str = "up") -> asyncio.Task[Any]:
    """A command that is certainly running."""
    task = asyncio.create_task(sandbox.exec(["sh", "-c", f"touch {path}; sleep 600"], timeout_s=600))
    await sandbox.exec(["sh", "-c", f"until test -e {path}; do sleep 0.01; done"])
    return task


# ------------------------------------------------------------------------------------------- the contract


@pytest.mark.parametrize("check", CHECKS)
async def test_the_backend_keeps_its_promise(world: World, check: str) -> None:
    await CHECKS[check](world.provider, SPEC)
    assert await world.remaining() == []


async def test_a_sandbox_is_labelled_found_and_removed(world: World) -> None:
    sandbox = await world.provider.create(SPEC, labels={"vime.run": "r1"})
    (info,) = await world.provider.list()
    assert (info.id, info.backend, info.state) == (sandbox.id, "e2b", "running")
    assert info.labels["vime.run"] == "r1"
    assert ownership.owner_alive(info.labels[ownership.OWNER])
    assert info.created_at is not None
    assert info.expires_at is not None
    assert 3590 < info.expires_at - info.created_at < 3610
    await AsyncSandbox.create(**world.options)  # somebody else's
    assert len(await world.provider.list()) == 1
    await world.provider.remove(sandbox.id)
    await world.provider.remove(sandbox.id)
    assert await world.provider.list() == []
    assert not await sandbox.alive()


async def test_what_holds_is_said(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    held = {"filesystem", "ttl", "file_size", "open_files", "processes", "memory_per_process", "network"}
    assert sandbox.enforced == held
    roomy = await world.provider.create(SandboxSpec(backend="e2b", memory_mb=512, cpus=2.0))
    assert roomy.enforced == held | {"memory", "cpus"}


async def test_setup_files_and_environment_are_there(world: World) -> None:
    spec = SandboxSpec(
        backend="e2b",
        env={"A": "1"},
        files={"in.txt": "x"},
        setup=(("sh", "-c", "cat in.txt > out; echo $A >> out"),),
    )
    sandbox = await world.provider.create(spec)
    assert await sandbox.read("out") == b"x1\n"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"image": "none-such"}, SandboxUnsupported, "no template 'none-such'"),
        ({"build": "folder"}, SandboxUnsupported, "builds no Dockerfile"),
        ({"cpus": 0.5}, SandboxUnsupported, "1 processors"),
        ({"network": True}, SandboxUnsupported, "no network"),
        ({"network": ("pypi.org:443",)}, SandboxUnsupported, "single ports"),
        ({"user": "somebody"}, SandboxUnsupported, "somebody"),
        ({"options": {"a": "b"}}, ConfigError, "has none"),
        ({"setup": (("sh", "-c", "echo oh; exit 1"),)}, SandboxNotReady, "oh"),
    ],
)
async def test_what_cannot_be_given_is_refused_and_leaves_nothing(
    world: World, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await world.provider.create(SandboxSpec(backend="e2b", **change))
    assert await world.remaining() == []


async def test_restore_takes_the_files_back_and_ends_the_programs(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    await sandbox.write("a", b"1")
    kept = await sandbox.snapshot()
    running = await busy(sandbox)
    await sandbox.write("a", b"2")
    name = sandbox.id
    await sandbox.restore(kept)
    assert (sandbox.id, await sandbox.read("a")) == (name, b"1")
    with pytest.raises(SandboxError):
        await running
    assert len(await world.remaining()) == 1
    copy = await world.provider.create(SPEC, snapshot=kept)
    assert await copy.read("a") == b"1"
    await world.provider.delete_snapshot(kept)
    await world.provider.delete_snapshot(kept)


async def test_extending_moves_the_end(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    await sandbox.extend(100)
    info = await sandbox.info()
    assert info.created_at is not None
    assert info.expires_at is not None
    assert 95 < info.expires_at - info.created_at < 130


# ------------------------------------------------------------------------------------------- faults


async def test_a_refused_creation_is_tried_again(world: World) -> None:
    busy_answer = refusal(429, **{"retry-after": "0"})
    world.between.answers += [("POST /v2/sandboxes", busy_answer)] * 2
    world.between.answers += [("POST /v2/sandboxes", refusal(503)), ("POST /v2/sandboxes", refusal(500))]
    world.between.answers += [("POST /v2/sandboxes", (502, {}, b"<html>a proxy</html>"))]
    sandbox = await world.provider.create(SPEC)
    assert (await sandbox.exec(["echo", "ok"])).text == "ok\n"
    assert world.between.asked("POST /v2/sandboxes") == 6
    assert len(await world.remaining()) == 1


async def test_a_creation_whose_answer_is_lost_makes_one_sandbox(world: World) -> None:
    world.between.answers.append(("POST /v2/sandboxes", None))
    await world.provider.create(SPEC)
    assert world.between.asked("POST /v2/sandboxes") == 2
    assert len(await world.remaining()) == 1


async def test_errors_that_stay_are_typed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e2b_errors, "CONTROL_DEADLINE_S", 1.0)
    with pytest.raises(SandboxUnavailable, match="E2B_API_KEY"):
        await E2BSandboxProvider(api_key="wrong", api_url=world.direct).create(SPEC)
    with pytest.raises(SandboxUnavailable, match="E2B_API_KEY"):
        await E2BSandboxProvider(api_key="wrong", api_url=world.direct).preflight()
    with pytest.raises(SandboxUnavailable, match="does not answer"):
        await E2BSandboxProvider(api_key="wrong", api_url="http://127.0.0.1:1").preflight()
    await world.provider.preflight()


async def test_a_sandbox_killed_from_outside_is_dead(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    running = await busy(sandbox)
    (remote_id,) = await world.remaining()
    await AsyncSandbox.kill(remote_id, **world.options)
    with pytest.raises(SandboxDead):
        await running
    with pytest.raises(SandboxDead):
        await sandbox.exec(["true"])
    assert not await sandbox.alive()
    await sandbox.close()


async def test_a_sandbox_whose_machine_dies_is_dead(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    running = await busy(sandbox)
    (machine,) = world.local._open.values()
    await machine.close()
    with pytest.raises(SandboxDead):
        await running
    assert not await sandbox.alive()
    assert await world.remaining() == []


async def test_a_cut_connection_loses_the_command_but_not_the_sandbox(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    await sandbox.write("kept", b"1")
    running = await busy(sandbox)
    world.wire.cut()
    with pytest.raises(SandboxUnreachable, match="broke"):
        await running
    assert await sandbox.read("kept") == b"1"
    listing = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert "sleep 600" not in listing.text
    assert sandbox.id in [s.id for s in await world.provider.list()]


async def test_a_service_that_is_gone_is_unreachable(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    running = await busy(sandbox)
    await world.wire.close()
    with pytest.raises(SandboxUnreachable):
        await running
    with pytest.raises(SandboxUnreachable):
        await sandbox.exec(["true"])
    assert not await sandbox.alive()


async def test_ending_the_runner_from_inside_ends_the_sandbox(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    with pytest.raises(SandboxDead, match="ended from inside"):
        await sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 600"])
    assert await world.remaining() == []


async def test_a_cancelled_creation_leaves_nothing(world: World) -> None:
    for wait in ("POST /v2/sandboxes", "GET /sandboxes/", "POST /process.Process/Start"):
        before = world.between.asked(wait)
        task = asyncio.create_task(world.provider.create(SPEC))
        while world.between.asked(wait) == before:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def empty() -> bool:
            return await world.remaining() == []

        await until(empty)


async def test_a_cancelled_close_still_closes(world: World) -> None:
    sandbox = await world.provider.create(SPEC)
    task = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async def empty() -> bool:
        return await world.remaining() == []

    await until(empty)


async def test_closing_says_when_the_service_does_not_confirm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.provider.create(SPEC)
    monkeypatch.setattr(e2b_cloud, "CLEANUP_TIMEOUT_S", 3.0)
    world.between.answers += [("DELETE /sandboxes/", refusal(500))] * 200
    with pytest.raises(SandboxBackendError):
        await sandbox.close()
    world.between.answers.clear()
    await sandbox.close()
    assert await world.remaining() == []
