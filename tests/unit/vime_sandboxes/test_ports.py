from __future__ import annotations

import asyncio

import pytest

from vime_agents.errors import SandboxDead
from vime_agents.sandbox import Sandbox, SandboxSpec
from vime_sandboxes import ports, relay_program
from vime_sandboxes.io_thread import on_io_thread
from vime_sandboxes.local import LocalSandboxProvider
from vime_sandboxes.relay import Relay

ECHO = """\
import socket, threading, time
for attempt in range(500):  # a killed server may take a moment to let go of the port
    try: s = socket.create_server(("127.0.0.1", 7000)); break
    except OSError: time.sleep(0.01)
print("up", flush=True)
def serve(c):
    while data := c.recv(1 << 16): c.sendall(data)
    c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""


@pytest.fixture
async def provider():
    made = LocalSandboxProvider()
    yield made
    await made.aclose()


@pytest.fixture
async def sandbox(provider: LocalSandboxProvider):
    return await provider.create(SandboxSpec(memory_mb=128))


async def start_echo(sandbox: Sandbox) -> None:
    process = await sandbox.spawn(["python3", "-IS", "-c", ECHO])
    async for _, piece in process.output():
        assert piece == b"up\n"
        return


async def read_all(stream: ports.PortStream) -> bytes:
    data = b""
    while piece := await stream.read():
        data += piece
    return data


async def test_bytes_go_both_ways_to_a_server_inside(sandbox: Sandbox) -> None:
    await start_echo(sandbox)
    sent = bytes(range(256)) * 20_000
    streams = [await ports.connect(sandbox, 7000) for _ in range(5)]

    async def talk(stream: ports.PortStream) -> bytes:
        reading = asyncio.ensure_future(read_all(stream))
        await stream.write(sent)
        await stream.end()
        return await reading

    assert await asyncio.gather(*map(talk, streams)) == [sent] * 5


async def test_a_reader_that_does_not_read_stops_nobody_else(sandbox: Sandbox) -> None:
    await start_echo(sandbox)
    lazy, busy = await ports.connect(sandbox, 7000), await ports.connect(sandbox, 7000)
    # More than every buffer on the way takes: this waits for `lazy` to be read.
    stuck = asyncio.ensure_future(lazy.write(bytes(30 << 20)))
    await busy.write(b"hello")
    assert await busy.read() == b"hello"
    assert not stuck.done()
    await lazy.close()
    with pytest.raises(BrokenPipeError):
        await stuck


async def test_nobody_listening(sandbox: Sandbox) -> None:
    for port in (9, 70_000):
        with pytest.raises(ConnectionRefusedError):
            await ports.connect(sandbox, port)


async def test_a_forwarded_port(sandbox: Sandbox) -> None:
    await start_echo(sandbox)
    async with ports.forward(sandbox, 7000) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
        held, holder = await asyncio.open_connection("127.0.0.1", port)
        holder.write(b"held")
        assert await held.readexactly(4) == b"held"
    assert await held.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    holder.close()


async def test_it_goes_on_after_the_inside_has_killed_everything(sandbox: Sandbox) -> None:
    await start_echo(sandbox)
    stream = await ports.connect(sandbox, 7000)
    await sandbox.exec(["sh", "-c", "kill -9 -1"])
    with pytest.raises(ConnectionResetError):
        await read_all(stream)
    await start_echo(sandbox)
    stream = await ports.connect(sandbox, 7000)
    await stream.write(b"again")
    assert await stream.read() == b"again"


async def test_a_closed_sandbox_is_named(sandbox: Sandbox) -> None:
    await start_echo(sandbox)
    stream = await ports.connect(sandbox, 7000)
    await sandbox.close()
    with pytest.raises(ConnectionResetError):
        await read_all(stream)
    with pytest.raises(SandboxDead):
        await ports.connect(sandbox, 7000)


@pytest.mark.parametrize(
    "frame",
    [
        (relay_program.OPEN, 2, 0, b""),
        (relay_program.DATA, 1, 1 << 30, b""),
        (relay_program.DATA, 1, 1 << 16, bytes(1 << 16)),
    ],
)
async def test_a_relay_that_breaks_the_rules_is_ended(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, frame: tuple[int, int, int, bytes]
) -> None:
    kind, stream, value, data = frame
    header = relay_program.HEADER.pack(kind, stream, value)
    opened = relay_program.HEADER.pack(relay_program.OPENED, 1, 0)
    program = (
        "import os, sys, time\n"
        f"os.write(1, bytes({list(relay_program.HEADER.pack(relay_program.READY, 0, 0))}))\n"
        f"sys.stdin.buffer.raw.read(100); sys.stdout.buffer.write(bytes({list(opened)}))\n"
        f"for _ in range(10): sys.stdout.buffer.write(bytes({list(header)}) + bytes({len(data)}))\n"
        "sys.stdout.flush(); time.sleep(600)\n"
    )
    monkeypatch.setattr("vime_sandboxes.relay._source", lambda: program)

    async def reason() -> str:
        relay = await Relay.start(sandbox)
        connecting = asyncio.ensure_future(relay.connect(80))
        ended = await relay.ended
        await asyncio.gather(connecting, return_exceptions=True)
        return ended

    assert (await on_io_thread(reason())).startswith("it broke the protocol: ")
