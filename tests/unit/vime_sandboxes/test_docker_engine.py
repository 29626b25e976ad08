"""Daemons that cannot be used, and errors in the words of the sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from vime_agents.errors import SandboxTimeout, SandboxUnavailable, SandboxUnreachable, SandboxUnsupported
from vime_sandboxes import docker_engine
from vime_sandboxes.docker_engine import ApiError, Engine

INFO = b'{"MemoryLimit": true}'
VERSION = b'{"ApiVersion": "1.41"}'


@pytest.fixture
async def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/d.sock")
    return tmp_path / "d.sock"


async def serve(socket: Path, answer: bytes | None) -> asyncio.Server:
    """A daemon that knows its version and nothing else; None: it is silent."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = VERSION if b"/version" in head else INFO if b"/info" in head else None
                if body is not None:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                elif answer is not None:
                    writer.write(answer)
        except asyncio.IncompleteReadError:
            pass  # the client is done
        finally:
            writer.close()

    return await asyncio.start_unix_server(talk, socket)


@pytest.mark.parametrize("address", ["ssh://user@host", "npipe:////./pipe/docker_engine"])
async def test_other_addresses_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    engine = Engine()
    with pytest.raises(SandboxUnsupported, match="only unix:// and tcp:// addresses"):
        await engine.connect()
    engine.close()


async def test_nobody_there_is_unavailable(socket: Path) -> None:
    engine = Engine()
    with pytest.raises(SandboxUnavailable, match=f"no Docker daemon at unix://{socket}"):
        await engine.connect()
    engine.close()


async def test_refusals_of_a_stream_carry_status_and_text(socket: Path) -> None:
    text = b'{"message": "No such container: x"}'
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
    server = await serve(socket, answer)
    engine = Engine()
    with pytest.raises(ApiError, match="attaching: No such container: x") as caught:
        await engine.stream("attaching", "/containers/x/attach")
    assert caught.value.status == 404
    assert engine.info == {"MemoryLimit": True}
    engine.close()
    server.close()


async def test_silence_is_a_timeout_with_the_limit(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "ANSWER_TIMEOUT_S", 1.0)
    server = await serve(socket, None)
    engine = Engine()
    with pytest.raises(SandboxTimeout, match="no answer from the Docker daemon within 1 s") as caught:
        await engine.stream("attaching", "/containers/x/attach")
    assert (caught.value.limit, caught.value.limit_s) == ("daemon answer", 1.0)
    with pytest.raises(SandboxTimeout):
        await engine.call("asking", lambda client: client.inspect_image("x"))
    engine.close()
    server.close()


async def test_it_stays_with_its_daemon(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(socket, None)
    engine = Engine()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/another.sock")
    assert await engine.call("asking", lambda client: client.info()) == {"MemoryLimit": True}
    engine.close()
    assert await engine.call("asking", lambda client: client.info()) == {"MemoryLimit": True}
    engine.close()
    server.close()


async def test_a_daemon_that_went_away_is_unreachable(socket: Path) -> None:
    server = await serve(socket, None)
    engine = Engine()
    await engine.connect()
    server.close()
    socket.unlink(missing_ok=True)
    with pytest.raises(SandboxUnreachable, match="attaching: the Docker daemon"):
        await engine.stream("attaching", "/containers/x/attach")
    engine.close()
