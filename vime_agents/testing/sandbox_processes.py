"""Checks of programs that go on while their owner does other things."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from dataclasses import replace

from vime_agents.errors import (
    CommandNotFound,
    SandboxDead,
    SandboxFileNotFound,
)
from vime_agents.sandbox import Sandbox, SandboxProcess, SandboxProvider, SandboxSpec
from vime_agents.testing.sandbox_kit import check, expect, opened, processes_with, raises

_POLL_LIMIT_S = 30.0


async def collect(process: SandboxProcess) -> tuple[bytes, bytes]:
    """Everything on its standard output and its standard error."""
    found = {"stdout": bytearray(), "stderr": bytearray()}
    async for stream, piece in process.output():
        found[stream] += piece
    return bytes(found["stdout"]), bytes(found["stderr"])


# --------------------------------------------------------------------------------------------- streams


@check
async def spawned_programs_can_be_talked_to(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Input and output go back and forth; env, cwd, both streams, the process id and the result are right."""
    script = 'echo "$PWD $COLOUR $$" >&2; while read line; do echo "got $line"; done; exit 3'
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["sh", "-c", script], env={"COLOUR": "red"}, cwd="/tmp")
        seen = {"stdout": b"", "stderr": b""}
        async for stream, piece in process.output():
            seen[stream] += piece
            if stream == "stderr" and seen["stderr"].endswith(b"\n"):
                await process.write(b"one\n")
            elif seen["stdout"] == b"got one\n":
                await process.write(b"two\n")
            elif seen["stdout"] == b"got one\ngot two\n":
                await process.close_stdin()
        expect(seen["stderr"] == f"/tmp red {process.pid}\n".encode(), "folder, variable, process id", seen)
        result = await process.wait()
        ended = (result.exit_code, result.signal, result.stdout, result.stdout_bytes, result.stderr_bytes)
        expect(ended == (3, None, b"", 16, len(seen["stderr"])), "status 3, counts, no output kept", result)


@check
async def streams_carry_every_byte(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Megabytes of any bytes pass through a program, in both directions at once."""
    data = bytes(range(256)) * 4096 + os.urandom(3 << 20)
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["cat"])
        reader = asyncio.create_task(collect(process))
        for start in range(0, len(data), 300_001):
            await process.write(data[start : start + 300_001])
        await process.close_stdin()
        stdout, stderr = await reader
        result = await process.wait()
        expect(stdout == data and stderr == b"", "the same bytes", (len(stdout), stderr[:200]))
        expect(result.ok and result.stdout_bytes == len(data), "a right count", result)


@check
async def slow_readers_hold_the_program_back(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A program writes no faster than its output is read, and nothing of it is lost."""
    total = 64 << 20
    program = (
        "import os\n"
        f"block, left = b'x' * 65536, {total}\n"
        "while left:\n"
        "    left -= os.write(1, block[:left])\n"
        "    open('left', 'w').write(str(left))\n"
    )
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["python3", "-IS", "-c", program])
        pieces = process.output()
        _, first = await anext(pieces)
        left = await _settled(sandbox, "left")
        expect(left > total // 2, "most of it is not written while nobody reads", total - left)
        size = len(first)
        async for _, piece in pieces:
            size += len(piece)
        expect(size == total, f"all {total} bytes", size)
        expect((await process.wait()).stdout_bytes == total, f"{total} counted", size)


async def _settled(sandbox: Sandbox, path: str) -> int:
    """The number in a file, once it does not change any more."""
    deadline, before, same = time.monotonic() + _POLL_LIMIT_S, b"", 0
    while same < 20 and time.monotonic() < deadline:
        seen = (await sandbox.exec(["cat", path])).stdout
        same = same + 1 if seen == before and seen else 0
        before = seen
    return int(before)


@check
async def writing_waits_for_the_program(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Input that nobody reads holds its writer back, disturbs nothing else, and ends with the program."""
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["sleep", "600"])
        writer = asyncio.create_task(process.write(b"x" * (32 << 20)))
        for _ in range(20):
            expect((await sandbox.exec(["true"])).ok, "other commands run meanwhile", False)
        expect(not writer.done(), "32 MB stay unwritten while nobody reads", writer)
        await process.kill()
        await raises(BrokenPipeError, "a write to a program that was killed meanwhile", writer)


@check
async def ended_programs_take_nothing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """After its end a write is BrokenPipeError and a kill is nothing; also when it only closed its input."""
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["true"])
        result = await process.wait()
        expect(result.ok and await process.wait() == result, "status 0, as often as asked", result)
        await process.kill()
        await raises(BrokenPipeError, "a write after the end", process.write(b"x"))
        deaf = await sandbox.spawn(["sh", "-c", "exec <&-; echo closed; exec sleep 600"])
        async for _ in deaf.output():
            break

        async def write_on() -> None:
            async with asyncio.timeout(_POLL_LIMIT_S):
                while True:
                    await deaf.write(b"x" * 4096)

        await raises(BrokenPipeError, "a write to a closed input", write_on())
        await deaf.kill()


@check
async def waiting_drops_what_nobody_reads(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`wait` alone ends, however much is written; the count is exact. With a reader nothing is dropped."""
    total = 20_000_000
    command = ["head", "-c", str(total), "/dev/zero"]
    async with opened(provider, spec) as sandbox:
        result = await (await sandbox.spawn(command)).wait()
        expect(result.ok and result.stdout_bytes == total, f"{total} counted", result)
        process = await sandbox.spawn(command)
        (stdout, _), result = await asyncio.gather(collect(process), process.wait())
        expect(len(stdout) == total == result.stdout_bytes, f"{total} read", (len(stdout), result))


# ------------------------------------------------------------------------------------------------ end


@check
async def killing_takes_the_tree(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """SIGKILL and the time limit end the program and all that it started; other signals reach it alone."""
    mark = secrets.token_hex(8)
    tree = ["sh", "-c", f"setsid sleep 600.{int(mark, 16)} & sleep 600.{int(mark, 16)} & echo up; wait"]
    mark = f"600.{int(mark, 16)}"
    async with opened(provider, spec) as sandbox:
        killed = await sandbox.spawn(tree)
        async for _ in killed.output():
            break
        expect(await processes_with(sandbox, mark) >= 2, "its children run", 0)
        await killed.kill()
        result = await killed.wait()
        expect((result.exit_code, result.signal) == (None, 9), "signal 9", result)
        expect(not result.timed_out, "not timed out", result)
        left = await processes_with(sandbox, mark)
        expect(left == 0, "nothing is left of its tree", left)

        late = await sandbox.spawn(tree, timeout_s=1.0)
        result = await late.wait()
        expect(result.timed_out and result.exit_code is None, "timed out", result)
        left = await processes_with(sandbox, mark)
        expect(left == 0, "nothing is left after the time limit", left)

        polite = await sandbox.spawn(
            ["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"]
        )
        async for _ in polite.output():
            break
        await polite.kill(15)
        result = await polite.wait()
        expect(result.exit_code == 7, "SIGTERM can be handled", result)


@check
async def spawned_servers_survive_commands(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A server serves later commands, and lives until it is killed."""
    server = (
        "import socket\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('door'); s.listen(); print('up', flush=True)\n"
        "n = 0\n"
        "while True:\n"
        "    c, _ = s.accept(); n += 1; c.sendall(str(n).encode()); c.close()\n"
    )
    client = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('door'); print(s.recv(9).decode())"
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["python3", "-IS", "-c", server])
        async for _ in process.output():
            break
        seen = [(await sandbox.exec(["python3", "-IS", "-c", client])).text for _ in range(3)]
        expect(seen == ["1\n", "2\n", "3\n"], "one server for all", seen)
        await process.kill()
        refused = await sandbox.exec(["python3", "-IS", "-c", client])
        expect(not refused.ok, "no server after the kill", refused)


@check
async def ends_are_seen_though_children_hold_the_output(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`wait` is over when the program is, though a child still has its output."""
    async with opened(provider, spec) as sandbox:
        process = await sandbox.spawn(["sh", "-c", "sleep 600 & echo started"])
        async with asyncio.timeout(_POLL_LIMIT_S):
            result = await process.wait()
        expect(result.ok and result.stdout_bytes == 8, "status 0, 8 bytes", result)


@check
async def missing_programs_are_not_spawned(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A missing program or folder raises, as with `exec`."""
    async with opened(provider, spec) as sandbox:
        await raises(CommandNotFound, "a missing program", sandbox.spawn(["no-such-program"]))
        await raises(SandboxFileNotFound, "a missing folder", sandbox.spawn(["true"], cwd="/no/such"))
        expect(await sandbox.alive(), "alive afterwards", False)


@check
async def cancelled_spawns_leave_nothing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Whenever the caller of `spawn` is cancelled, no program is left that nobody holds."""
    mark = f"600.{int(secrets.token_hex(8), 16)}"
    async with opened(provider, replace(spec, max_processes=64)) as sandbox:
        for turns in range(12):
            task = asyncio.create_task(sandbox.spawn(["sleep", mark]))
            for _ in range(turns):
                await asyncio.sleep(0.001)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).kill()
        async with asyncio.timeout(_POLL_LIMIT_S):
            while await processes_with(sandbox, mark):
                pass


@check
async def a_gone_sandbox_is_not_the_end_of_a_program(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """When the sandbox ends, its programs' output and result are SandboxDead, never an end of file."""
    sandbox = await provider.create(spec)
    process = await sandbox.spawn(["sh", "-c", "echo up; exec sleep 600"])
    reader, waiter = asyncio.create_task(collect(process)), asyncio.create_task(process.wait())
    await sandbox.exec(["true"])
    await sandbox.close()
    await raises(SandboxDead, "reading when the sandbox ends", reader)
    await raises(SandboxDead, "waiting when the sandbox ends", waiter)
    await raises(SandboxDead, "spawning in a closed sandbox", sandbox.spawn(["true"]))
    await raises(SandboxDead, "writing in a closed sandbox", process.write(b"x"))
