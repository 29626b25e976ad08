"""Conformance kit for sandbox backends: what every one must do, as black-box checks.

    await check_sandbox(MyProvider(), SandboxSpec(backend="mine"))   # raises ContractError, lists failures

or one test for each check: `@pytest.mark.parametrize("name", CHECKS)`, `await CHECKS[name](provider, spec)`.
Needs `python3` and `sh` in the sandbox. Each check makes and closes its own sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import replace

from vime_agents.errors import (
    CommandNotFound,
    ContractError,
    SandboxDead,
    SandboxError,
    SandboxFileNotFound,
)
from vime_agents.sandbox import SandboxProvider, SandboxSpec
from vime_agents.testing import sandbox_isolation, sandbox_lifetime, sandbox_processes, sandbox_trees
from vime_agents.testing.sandbox_kit import CHECKS, check, expect, opened, processes_with, python

__all__ = [
    "CHECKS",
    "check_sandbox",
    "sandbox_isolation",
    "sandbox_lifetime",
    "sandbox_processes",
    "sandbox_trees",
]


async def check_sandbox(provider: SandboxProvider, spec: SandboxSpec | None = None) -> None:
    """Run every check.

    Raises:
        ContractError: naming each broken promise and what was seen.
    """
    failures = []
    for name, run in CHECKS.items():
        try:
            await run(provider, spec or SandboxSpec())
        except (ContractError, SandboxError) as error:
            failures.append(f"{name}: {error!r}")
    if failures:
        raise ContractError(f"{provider.name}: {len(failures)} broken promises\n  " + "\n  ".join(failures))


# --------------------------------------------------------------------------------------- commands


@check
async def results_are_exact(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Exit status, both streams, stdin, cwd and env arrive as they are."""
    async with opened(provider, spec) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", 'cat; echo "$PWD $COLOUR" >&2; exit 3'],
            stdin=b"in\n",
            cwd="/tmp",
            env={"COLOUR": "red"},
        )
        expect(result.exit_code == 3 and result.signal is None, "exit status 3", result)
        expect(result.stdout == b"in\n" and result.stderr == b"/tmp red\n", "streams as written", result)
        expect(not result.ok and not result.truncated and not result.timed_out, "nothing else", result)
        killed = await sandbox.exec(["sh", "-c", "kill -TERM $$"])
        expect(killed.exit_code is None and killed.signal == 15, "signal 15, no exit status", killed)


@check
async def many_commands_at_once_keep_their_output(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Output that is written in a program's last moment arrives, whatever else the sandbox is doing."""
    async with opened(provider, replace(spec, max_processes=64)) as sandbox:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(n)]) for n in range(40)))
        seen = [r.text for r in results]
        expect(seen == [f"{n}\n" for n in range(40)], "each its own number", seen)


@check
async def arguments_are_not_interpreted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Arguments reach the program unchanged, whatever a shell would make of them."""
    arguments = ["$HOME", "a b", "'\"`;|&", "", "é\n", "*"]
    async with opened(provider, spec) as sandbox:
        result = await python(
            sandbox, "import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())", *arguments
        )
        expect(result.text == ascii(arguments), "the same arguments", result)


@check
async def bytes_survive(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Every byte value passes through stdin, stdout and files: NUL and invalid UTF-8 too."""
    data = bytes(range(256)) * 41
    async with opened(provider, spec) as sandbox:
        result = await sandbox.exec(["cat"], stdin=data)
        expect(result.stdout == data, "the same bytes on stdout", result)
        await sandbox.write("raw.bin", data)
        expect(await sandbox.read("raw.bin") == data, "the same bytes in a file", len(data))


@check
async def long_output_is_capped_and_counted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Of 50 MB, head and tail are kept, and the count is exact."""
    total, limit = 50_000_000, 10_000
    program = f"import sys; sys.stdout.write('head' + 'x' * {total - 8} + 'tail'); sys.stderr.write('e')"
    async with opened(provider, spec) as sandbox:
        result = await sandbox.exec(["python3", "-IS", "-c", program], max_output=limit)
        expect(result.stdout_bytes == total and result.stderr_bytes == 1, f"{total} and 1", result)
        expect(len(result.stdout) == limit and result.truncated, f"{limit} bytes kept", result)
        ends = (result.stdout[:4], result.stdout[-4:])
        expect(ends == (b"head", b"tail"), "head and tail kept", ends)
        exact = await sandbox.exec(["printf", "12345"], max_output=5)
        expect(exact.stdout == b"12345" and not exact.truncated, "the limit itself fits", exact)


@check
async def missing_things_have_their_errors(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A missing program or file is a typed error, and the sandbox goes on working."""
    async with opened(provider, spec) as sandbox:
        for what, error, call in (
            ("program", CommandNotFound, lambda: sandbox.exec(["no-such-program"])),
            ("working directory", SandboxFileNotFound, lambda: sandbox.exec(["true"], cwd="/no/such")),
            ("file", SandboxFileNotFound, lambda: sandbox.read("no/such.txt")),
        ):
            try:
                seen: object = await call()
            except error:
                continue
            raise ContractError(f"a missing {what} raises {error.__name__}; saw {seen!r}")
        expect(await sandbox.alive(), "alive afterwards", False)


@check
async def background_children_do_not_stall(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A command is over when its program is, though a child still holds its output; the child lives on."""
    mark = secrets.token_hex(8)
    async with opened(provider, spec) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", f"python3 -c 'import time; time.sleep(600)' {mark} & echo started"], timeout_s=60
        )
        expect(not result.timed_out and result.stdout == b"started\n", "an answer at once", result)
        alive = await processes_with(sandbox, mark)
        expect(alive >= 1, "the background child lives on", alive)


# ----------------------------------------------------------------------------------------- time-outs

_ESCAPE = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["python3", "-c", "import time; time.sleep(600)", sys.argv[1]], {CLEAR})
    os._exit(0) if sys.argv[2] == "orphan" else time.sleep(600)
os.fork()
print("up", flush=True)
time.sleep(600)
"""


@check
async def timeouts_kill_the_tree(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Time-out is a result; children, sessions of their own and orphans are gone; output so far is kept."""
    async with opened(provider, spec) as sandbox:
        for kind, environment in (("orphan", "dict(os.environ)"), ("child", "{}")):
            mark = secrets.token_hex(8)
            program = _ESCAPE.replace("{CLEAR}", environment)
            result = await python(sandbox, program, mark, kind, timeout_s=1.0)
            expect(result.timed_out and result.exit_code is None, "timed out", result)
            expect(result.stdout.startswith(b"up"), "output so far is kept", result)
            left = await processes_with(sandbox, mark)
            expect(left == 0, f"no process left of the time-out ({kind})", left)


@check
async def commands_do_not_disturb_each_other(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """One command's time-out, or its closing of its output, leaves another of the same sandbox alone."""
    async with opened(provider, spec) as sandbox:
        slow, other = await asyncio.gather(
            sandbox.exec(["sleep", "600"], timeout_s=0.5),
            sandbox.exec(["sh", "-c", "sleep 1; echo done"], timeout_s=60),
        )
        expect(slow.timed_out, "the first times out", slow)
        expect(other.stdout == b"done\n", "the second ends by itself", other)
        silent = asyncio.create_task(sandbox.exec(["sh", "-c", "exec >&- 2>&-; touch up; sleep 0.5"]))
        await sandbox.exec(["sh", "-c", "until test -e up; do sleep 0.01; done"])
        command = ["sh", "-c", "sleep 1; echo late; sleep 0.3"]
        late = [r.stdout for r in await asyncio.gather(*(sandbox.exec(command) for _ in range(3)))]
        await silent
        expect(late == [b"late\n"] * 3, "output that begins after another command has closed its own", late)


@check
async def cancelled_commands_are_killed(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Cancelling the caller kills the command."""
    mark = secrets.token_hex(8)
    async with opened(provider, spec) as sandbox:
        task = asyncio.create_task(
            python(sandbox, "import time; open('up', 'w'); time.sleep(600)", mark, timeout_s=600)
        )
        while (await sandbox.exec(["sh", "-c", "test -e up || { sleep 0.01; false; }"])).exit_code != 0:
            pass
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(20):
            while await processes_with(sandbox, mark):
                pass


# -------------------------------------------------------------------------------------------- files


@check
async def files_round_trip(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Files up to MiB, empty, overwritten, in new folders; the mode; `spec.files`; a limit on reading."""
    spec = replace(spec, files={"given/hello.txt": "hé\n"})
    async with opened(provider, spec) as sandbox:
        expect(await sandbox.read("given/hello.txt") == "hé\n".encode(), "spec.files are there", None)
        for size in (3 << 20, 0, 1 << 20, 17):
            data = os.urandom(size)
            await sandbox.write("a/b/file.bin", data)
            seen = await sandbox.read("a/b/file.bin")
            expect(seen == data, f"the same {size} bytes", len(seen))
        await sandbox.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        result = await sandbox.exec(["./run.sh"])
        expect(result.stdout == b"ran\n", "mode 755 can be run", result)
        try:
            await sandbox.read("a/b/file.bin", max_bytes=16)
        except SandboxError:
            return
        raise ContractError("reading 17 bytes with max_bytes=16 raises SandboxError")


@check
async def sandboxes_share_nothing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """What one writes, wherever it may, another does not see; each starts empty."""
    async with opened(provider, spec) as first, opened(provider, spec) as second:
        name = secrets.token_hex(8)
        script = f"for d in . /tmp /var/tmp /dev/shm; do echo x > $d/{name}; done 2>/dev/null; true"
        await first.exec(["sh", "-c", script])
        seen = await second.exec(["sh", "-c", f"ls -d ./{name} /tmp/{name} /var/tmp/{name} /dev/shm/{name}"])
        await first.exec(["rm", "-f", f"/tmp/{name}", f"/var/tmp/{name}", f"/dev/shm/{name}"])
        expect(seen.stdout == b"", "nothing of the first sandbox", seen)
        seen = await second.exec(["ls", "-A"])
        expect(seen.stdout == b"", "an empty working directory", seen)


# ------------------------------------------------------------------------------------------- lifetime


@check
async def closing_ends_it(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`close` twice is fine; afterwards calls raise SandboxDead, also those that were under way."""
    sandbox = await provider.create(spec)
    expect(await sandbox.alive(), "alive when new", False)
    running = asyncio.create_task(sandbox.exec(["sleep", "600"], timeout_s=600))
    await sandbox.exec(["true"])
    await sandbox.close()
    await sandbox.close()
    (under_way,) = await asyncio.gather(running, return_exceptions=True)
    expect(isinstance(under_way, SandboxDead), "SandboxDead for the command under way", under_way)
    expect(not await sandbox.alive(), "not alive when closed", True)
    for call in (sandbox.exec(["true"]), sandbox.read("x"), sandbox.write("x", b"")):
        try:
            seen: object = await call
        except SandboxDead:
            continue
        raise ContractError(f"a closed sandbox raises SandboxDead; saw {seen!r}")


@check
async def time_to_live_holds(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """It ends by itself, also in the middle of a command; that is SandboxDead, not the command's result."""
    async with opened(provider, replace(spec, ttl_s=1.0)) as sandbox:
        try:
            seen: object = await sandbox.exec(["sleep", "600"], timeout_s=60)
        except SandboxDead:
            return
        raise ContractError(f"a command that outlives the sandbox raises SandboxDead; saw {seen!r}")


@check
async def any_event_loop_will_do(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A sandbox made in one event loop can be used and closed in another."""
    sandbox = await provider.create(spec)

    async def elsewhere() -> bytes:
        result = await sandbox.exec(["echo", "here"])
        await sandbox.close()
        return result.stdout

    seen = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    expect(seen == b"here\n", "the same answers in another loop", seen)
