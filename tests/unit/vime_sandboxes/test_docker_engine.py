"""Daemons that cannot be used, and errors in the words of the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from vime_agents.errors import SandboxTimeout, SandboxUnavailable, SandboxUnreachable, SandboxUnsupported
from vime_sandboxes import docker_engine, docker_unix
from vime_sandboxes.docker_engine import ApiError, Engine

Serve = Callable[[bytes | None], Awaitable[asyncio.Server]]
INFO = b'{"MemoryLimit": true}'
VERSION = b'{"ApiVersion": "1.41"}'


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    return tmp_path / "d.sock"


@pytest.fixture
async def serve(address: Path) -> AsyncIterator[Serve]:
    """Starts a daemon that knows its version and nothing else; None for its answer: it is silent."""
    async with contextlib.AsyncExitStack() as running:
        talking: set[asyncio.Task[None]] = set()

        async def start(answer: bytes | None) -> asyncio.Server:
            async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    while head := await reader.readuntil(b"\r\n\r\n"):
                        body = VERSION if b"/version" in head else INFO if b"/info" in head else None
                        if body is not None:
                            ok = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                            writer.write(ok)
                        elif answer is not None:
                            writer.write(answer)
                except asyncio.IncompleteReadError:
                    pass  # the client is done
                finally:
                    writer.close()

            def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                talking.add(asyncio.create_task(talk(reader, writer)))

            server = await asyncio.start_unix_server(begin, address)
            running.callback(server.close)
            return server

        yield start
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


@pytest.mark.parametrize("elsewhere", ["ssh://user@host", "npipe:////./pipe/docker_engine"])
async def test_other_addresses_are_refused(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", elsewhere)
    engine = Engine()
    with pytest.raises(SandboxUnsupported, match="only unix:// and tcp:// addresses"):
        await engine.connect()
    engine.close()


async def test_nobody_there_is_unavailable(address: Path) -> None:
    engine = Engine()
    with pytest.raises(SandboxUnavailable, match=f"no Docker daemon at unix://{address}"):
        await engine.connect()
    engine.close()


async def test_refusals_of_a_stream_carry_status_and_text(serve: Serve) -> None:
    text = b'{"message": "No such container: x"}'
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
    await serve(answer)
    engine = Engine()
    with pytest.raises(ApiError, match="attaching: No such container: x") as caught:
        await engine.stream("attaching", "/containers/x/attach")
    assert caught.value.status == 404
    assert engine.info == {"MemoryLimit": True}
    engine.close()


async def test_silence_is_a_timeout_with_the_limit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "ANSWER_TIMEOUT_S", 1.0)
    await serve(None)
    engine = Engine()
    with pytest.raises(SandboxTimeout, match="no answer from the Docker daemon within 1 s") as caught:
        await engine.stream("attaching", "/containers/x/attach")
    assert (caught.value.limit, caught.value.limit_s) == ("daemon answer", 1.0)
    with pytest.raises(SandboxTimeout):
        await engine.call("asking", lambda client: client.inspect_image("x"))
    engine.close()


async def test_it_stays_with_its_daemon(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(None)
    engine = Engine()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/another.sock")
    assert await engine.call("asking", lambda client: client.info()) == {"MemoryLimit": True}
    engine.close()
    assert await engine.call("asking", lambda client: client.info()) == {"MemoryLimit": True}
    engine.close()


async def test_a_daemon_that_went_away_is_unreachable(serve: Serve, address: Path) -> None:
    server = await serve(None)
    engine = Engine()
    await engine.connect()
    server.close()
    address.unlink(missing_ok=True)
    with pytest.raises(SandboxUnreachable, match="attaching: the Docker daemon"):
        await engine.stream("attaching", "/containers/x/attach")
    engine.close()


async def test_a_socket_that_cannot_connect_is_closed(
    serve: Serve, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Socket] = []

    class Socket(socket.socket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    server = await serve(None)
    engine = Engine()
    client = await engine.connect()
    server.close()
    address.unlink(missing_ok=True)
    client.close()  # what was kept open
    monkeypatch.setattr(docker_unix.socket, "socket", Socket)
    with pytest.raises(SandboxUnreachable, match="asking: the Docker daemon cannot be reached"):
        await engine.call("asking", lambda client: client.info())
    assert [s.fileno() for s in made] == [-1]
    engine.close()
