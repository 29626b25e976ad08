"""Conformance kit for sandbox backends: what every one must do, as black-box checks.

    await check_sandbox(MyProvider(), SandboxSpec(backend="mine"))   # raises ContractError, lists failures

or one test for each check: `@pytest.mark.parametrize("name", CHECKS)`, `await CHECKS[name](provider, spec)`.
Needs `python3` and `sh` in the sandbox. Each check makes and closes its own sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from vime_agents.errors import (
    CommandNotFound,
    ContractError,
    SandboxDead,
    SandboxError,
    SandboxFileNotFound,
)
from vime_agents.sandbox import ExecResult, Sandbox, SandboxProvider, SandboxSpec

Check = Callable[[SandboxProvider, SandboxSpec], Awaitable[None]]
CHECKS: dict[str, Check] = {}
"""Name -> check; a check raises ContractError when the backend breaks the promise in its docstring."""


async def check_sandbox(provider: SandboxProvider, spec: SandboxSpec | None = None) -> None:
    """Run every check.

    Raises:
        ContractError: naming each broken promise and what was seen.
    """
    failures = []
    for name, check in CHECKS.items():
        try:
            await check(provider, spec or SandboxSpec())
        except (ContractError, SandboxError) as error:
            failures.append(f"{name}: {error!r}")
    if failures:
        raise ContractError(f"{provider.name}: {len(failures)} broken promises\n  " + "\n  ".join(failures))


def _check(check: Check) -> Check:
    CHECKS[getattr(check, "__name__")] = check  # noqa: B009 - a Callable has no declared name
    return check


@contextlib.asynccontextmanager
async def _opened(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    sandbox = await provider.create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.close()


def _expect(condition: bool, promise: str, seen: object) -> None:
    if not condition:
        raise ContractError(f"{promise}; saw {seen!r:.1000}")


async def _python(sandbox: Sandbox, program: str, *arguments: str, timeout_s: float = 30.0) -> ExecResult:
    return await sandbox.exec(["python3", "-IS", "-c", program, *arguments], timeout_s=timeout_s)


async def _processes_with(sandbox: Sandbox, mark: str) -> int:
    """How many processes inside have `mark` in their command line."""
    program = (
        "import os, sys\n"
        "def line(p):\n"
        "    try: return open(f'/proc/{p}/cmdline','rb').read()\n"
        "    except OSError: return b''\n"
        "mark = sys.stdin.buffer.read()\n"
        "print(sum(mark in line(p) for p in os.listdir('/proc') if p.isdigit()))\n"
    )
    result = await sandbox.exec(["python3", "-IS", "-c", program], stdin=mark.encode())
    return int(result.text)


# --------------------------------------------------------------------------------------- commands


@_check
async def results_are_exact(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Exit status, both streams, stdin, cwd and env arrive as they are."""
    async with _opened(provider, spec) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", 'cat; echo "$PWD $COLOUR" >&2; exit 3'],
            stdin=b"in\n",
            cwd="/tmp",
            env={"COLOUR": "red"},
        )
        _expect(result.exit_code == 3 and result.signal is None, "exit status 3", result)
        _expect(result.stdout == b"in\n" and result.stderr == b"/tmp red\n", "streams as written", result)
        _expect(not result.ok and not result.truncated and not result.timed_out, "nothing else", result)
        killed = await sandbox.exec(["sh", "-c", "kill -TERM $$"])
        _expect(killed.exit_code is None and killed.signal == 15, "signal 15, no exit status", killed)


@_check
async def many_commands_at_once_keep_their_output(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Output that is written in a program's last moment arrives, whatever else the sandbox is doing."""
    async with _opened(provider, replace(spec, max_processes=64)) as sandbox:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(n)]) for n in range(40)))
        seen = [r.text for r in results]
        _expect(seen == [f"{n}\n" for n in range(40)], "each its own number", seen)


@_check
async def arguments_are_not_interpreted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Arguments reach the program unchanged, whatever a shell would make of them."""
    arguments = ["$HOME", "a b", "'\"`;|&", "", "é\n", "*"]
    async with _opened(provider, spec) as sandbox:
        result = await _python(
            sandbox, "import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())", *arguments
        )
        _expect(result.text == ascii(arguments), "the same arguments", result)


@_check
async def bytes_survive(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Every byte value passes through stdin, stdout and files: NUL and invalid UTF-8 too."""
    data = bytes(range(256)) * 41
    async with _opened(provider, spec) as sandbox:
        result = await sandbox.exec(["cat"], stdin=data)
        _expect(result.stdout == data, "the same bytes on stdout", result)
        await sandbox.write("raw.bin", data)
        _expect(await sandbox.read("raw.bin") == data, "the same bytes in a file", len(data))


@_check
async def long_output_is_capped_and_counted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Of 50 MB, head and tail are kept, and the count is exact."""
    total, limit = 50_000_000, 10_000
    program = f"import sys; sys.stdout.write('head' + 'x' * {total - 8} + 'tail'); sys.stderr.write('e')"
    async with _opened(provider, spec) as sandbox:
        result = await sandbox.exec(["python3", "-IS", "-c", program], max_output=limit)
        _expect(result.stdout_bytes == total and result.stderr_bytes == 1, f"{total} and 1", result)
        _expect(len(result.stdout) == limit and result.truncated, f"{limit} bytes kept", result)
        ends = (result.stdout[:4], result.stdout[-4:])
        _expect(ends == (b"head", b"tail"), "head and tail kept", ends)
        exact = await sandbox.exec(["printf", "12345"], max_output=5)
        _expect(exact.stdout == b"12345" and not exact.truncated, "the limit itself fits", exact)


@_check
async def missing_things_have_their_errors(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A missing program or file is a typed error, and the sandbox goes on working."""
    async with _opened(provider, spec) as sandbox:
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
        _expect(await sandbox.alive(), "alive afterwards", False)


@_check
async def background_children_do_not_stall(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A command is over when its program is, though a child still holds its output; the child lives on."""
    mark = secrets.token_hex(8)
    async with _opened(provider, spec) as sandbox:
        result = await sandbox.exec(
            ["sh", "-c", f"python3 -c 'import time; time.sleep(600)' {mark} & echo started"], timeout_s=60
        )
        _expect(not result.timed_out and result.stdout == b"started\n", "an answer at once", result)
        alive = await _processes_with(sandbox, mark)
        _expect(alive >= 1, "the background child lives on", alive)


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


@_check
async def timeouts_kill_the_tree(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Time-out is a result; children, sessions of their own and orphans are gone; output so far is kept."""
    async with _opened(provider, spec) as sandbox:
        for kind, environment in (("orphan", "dict(os.environ)"), ("child", "{}")):
            mark = secrets.token_hex(8)
            program = _ESCAPE.replace("{CLEAR}", environment)
            result = await _python(sandbox, program, mark, kind, timeout_s=1.0)
            _expect(result.timed_out and result.exit_code is None, "timed out", result)
            _expect(result.stdout.startswith(b"up"), "output so far is kept", result)
            left = await _processes_with(sandbox, mark)
            _expect(left == 0, f"no process left of the time-out ({kind})", left)


@_check
async def commands_do_not_disturb_each_other(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """One command's time-out leaves another of the same sandbox alone."""
    async with _opened(provider, spec) as sandbox:
        slow, other = await asyncio.gather(
            sandbox.exec(["sleep", "600"], timeout_s=0.5),
            sandbox.exec(["sh", "-c", "sleep 1; echo done"], timeout_s=60),
        )
        _expect(slow.timed_out, "the first times out", slow)
        _expect(other.stdout == b"done\n", "the second ends by itself", other)


@_check
async def cancelled_commands_are_killed(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Cancelling the caller kills the command."""
    mark = secrets.token_hex(8)
    async with _opened(provider, spec) as sandbox:
        task = asyncio.create_task(
            _python(sandbox, "import time; open('up', 'w'); time.sleep(600)", mark, timeout_s=600)
        )
        while (await sandbox.exec(["sh", "-c", "test -e up || { sleep 0.01; false; }"])).exit_code != 0:
            pass
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(20):
            while await _processes_with(sandbox, mark):
                pass


# -------------------------------------------------------------------------------------------- files


@_check
async def files_round_trip(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Files up to MiB, empty, overwritten, in new folders; the mode; `spec.files`; a limit on reading."""
    spec = replace(spec, files={"given/hello.txt": "hé\n"})
    async with _opened(provider, spec) as sandbox:
        _expect(await sandbox.read("given/hello.txt") == "hé\n".encode(), "spec.files are there", None)
        for size in (3 << 20, 0, 1 << 20, 17):
            data = os.urandom(size)
            await sandbox.write("a/b/file.bin", data)
            seen = await sandbox.read("a/b/file.bin")
            _expect(seen == data, f"the same {size} bytes", len(seen))
        await sandbox.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
        result = await sandbox.exec(["./run.sh"])
        _expect(result.stdout == b"ran\n", "mode 755 can be run", result)
        try:
            await sandbox.read("a/b/file.bin", max_bytes=16)
        except SandboxError:
            return
        raise ContractError("reading 17 bytes with max_bytes=16 raises SandboxError")


@_check
async def sandboxes_share_nothing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """What one writes, wherever it may, another does not see; each starts empty."""
    async with _opened(provider, spec) as first, _opened(provider, spec) as second:
        name = secrets.token_hex(8)
        script = f"for d in . /tmp /var/tmp /dev/shm; do echo x > $d/{name}; done 2>/dev/null; true"
        await first.exec(["sh", "-c", script])
        seen = await second.exec(["sh", "-c", f"ls -d ./{name} /tmp/{name} /var/tmp/{name} /dev/shm/{name}"])
        _expect(seen.stdout == b"", "nothing of the first sandbox", seen)
        seen = await second.exec(["ls", "-A"])
        _expect(seen.stdout == b"", "an empty working directory", seen)


# ---------------------------------------------------------------------------------------- isolation


@_check
async def host_secrets_are_unreadable(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """No file and no environment variable of the owner's; only `spec.env` is set."""
    secret, name = secrets.token_hex(16), "VIME_CHECK_CANARY"
    program = (
        "import os, sys\n"
        "secret = sys.stdin.buffer.read()\n"
        "paths = sys.argv[1:]\n"
        "for p in os.listdir('/proc'):\n"
        "    if p.isdigit(): paths += [f'/proc/{p}/environ', *(f'/proc/{p}/root{q}' for q in sys.argv[1:])]\n"
        "for p in paths:\n"
        "    try: data = open(p, 'rb').read()\n"
        "    except OSError: continue\n"
        "    if secret in data or p.endswith('/etc/shadow'): print('readable:', p)\n"
    )
    os.environ[name] = secret
    try:
        with tempfile.NamedTemporaryFile("w") as canary:
            canary.write(secret)
            canary.flush()
            async with _opened(provider, replace(spec, env={"GIVEN": "1"})) as sandbox:
                result = await sandbox.exec(
                    ["python3", "-IS", "-c", program, canary.name, "/etc/shadow"], stdin=secret.encode()
                )
                _expect(result.ok and result.stdout == b"", "no secret of the host", result)
                env = await sandbox.exec(["sh", "-c", f'echo "$GIVEN,${name}"'])
                _expect(env.stdout == b"1,\n", "only the environment that was given", env)
    finally:
        del os.environ[name]


@_check
async def no_network_means_none(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Without `network`, neither the host's own services nor any address can be reached."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    program = (
        "import socket\n"
        f"for address in (('127.0.0.1', {port}), ('192.0.2.1', 80)):\n"
        "    try: socket.create_connection(address, 2); print('reached', address)\n"
        "    except OSError: pass\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "try: u.sendto(b'x', ('192.0.2.1', 53)); print('sent')\n"
        "except OSError: pass\n"
    )
    try:
        async with _opened(provider, replace(spec, network=False)) as sandbox:
            result = await _python(sandbox, program)
            _expect(result.ok and result.stdout == b"", "nothing reached", result)
            _expect("network" in sandbox.enforced, "'network' in enforced", sandbox.enforced)
    finally:
        server.close()
        await server.wait_closed()


@_check
async def commands_have_no_privileges(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Not root, no capabilities, none to be gained, and the system's files are read-only."""
    program = (
        "import os\n"
        "s = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)\n"
        "print(os.getuid() != 0, int(s['CapEff'], 16), s['NoNewPrivs'])\n"
        "for p in ('/usr/x', '/etc/x', '/x', '/dev/x'):\n"
        "    try: open(p, 'w'); print('wrote', p)\n"
        "    except OSError: pass\n"
    )
    async with _opened(provider, spec) as sandbox:
        result = await _python(sandbox, program)
        _expect(result.stdout == b"True 0 1\n", "no privileges", result)


# ------------------------------------------------------------------------------------------- limits


@_check
async def processes_are_bounded(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """No more than `max_processes` at once, and a fork bomb leaves a working sandbox behind."""
    program = (
        "import os, time\n"
        "n = 0\n"
        "try:\n"
        "    while n < 1000:\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "        n += 1\n"
        "except OSError: pass\n"
        "print(n, flush=True); time.sleep(600)\n"
    )
    spec = replace(spec, max_processes=20)
    async with _opened(provider, spec) as sandbox:
        result = await _python(sandbox, program, timeout_s=2.0)
        _expect(10 <= int(result.text) <= 20, "at most 20 processes, and nearly as many", result)
        bomb = await sandbox.exec(["sh", "-c", "b() { b | b & }; b; sleep 600"], timeout_s=1.0)
        _expect(not bomb.ok, "a fork bomb does not succeed", bomb)
        after = await sandbox.exec(["sh", "-c", "echo $(echo alive)"])
        _expect(after.stdout == b"alive\n", "a command works after the fork bomb", after)


@_check
async def memory_is_bounded(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A memory hog, alone or as many small processes, fails as a result; the sandbox goes on working."""
    one = "data = []\nwhile len(data) < 1000: data.append(bytearray(b'x') * (4 << 20))\n"
    many = (
        "import os, time\n"
        "for _ in range(30):\n"
        "    if os.fork() == 0:\n"
        "        keep = bytearray(b'x') * (16 << 20); time.sleep(600)\n"
        "alive, end = 30, time.monotonic() + 20\n"
        "while alive > 9 and time.monotonic() < end:\n"
        "    alive -= os.waitpid(-1, os.WNOHANG)[0] > 0; time.sleep(0.01)\n"
        "print(alive)\n"
    )
    async with _opened(provider, replace(spec, memory_mb=128)) as sandbox:
        result = await _python(sandbox, one)
        _expect(not result.ok and not result.timed_out, "a hog of 4 GB in 128 MB fails", result)
        if "memory" in sandbox.enforced:
            result = await _python(sandbox, many)
            _expect(result.ok and int(result.text) <= 9, "of 30 times 16 MB, 9 at most fit into 128", result)
        _expect(await sandbox.alive(), "alive after the hog", False)


@_check
async def files_are_bounded(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A command cannot write a file of more than `max_file_mb`."""
    async with _opened(provider, replace(spec, max_file_mb=1)) as sandbox:
        result = await sandbox.exec(["sh", "-c", "head -c 5000000 /dev/zero > big; stat -c %s big"])
        _expect(int(result.text or 0) <= 1 << 20, "at most 1 MiB", result)


# ------------------------------------------------------------------------------------------- lifetime


@_check
async def closing_ends_it(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """`close` twice is fine; afterwards calls raise SandboxDead, also those that were under way."""
    sandbox = await provider.create(spec)
    _expect(await sandbox.alive(), "alive when new", False)
    running = asyncio.create_task(sandbox.exec(["sleep", "600"], timeout_s=600))
    await sandbox.exec(["true"])
    await sandbox.close()
    await sandbox.close()
    (under_way,) = await asyncio.gather(running, return_exceptions=True)
    _expect(isinstance(under_way, SandboxDead), "SandboxDead for the command under way", under_way)
    _expect(not await sandbox.alive(), "not alive when closed", True)
    for call in (sandbox.exec(["true"]), sandbox.read("x"), sandbox.write("x", b"")):
        try:
            seen: object = await call
        except SandboxDead:
            continue
        raise ContractError(f"a closed sandbox raises SandboxDead; saw {seen!r}")


@_check
async def time_to_live_holds(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """It ends by itself, also in the middle of a command; that is SandboxDead, not the command's result."""
    async with _opened(provider, replace(spec, ttl_s=1.0)) as sandbox:
        try:
            seen: object = await sandbox.exec(["sleep", "600"], timeout_s=60)
        except SandboxDead:
            return
        raise ContractError(f"a command that outlives the sandbox raises SandboxDead; saw {seen!r}")


@_check
async def any_event_loop_will_do(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A sandbox made in one event loop can be used and closed in another."""
    sandbox = await provider.create(spec)

    async def elsewhere() -> bytes:
        result = await sandbox.exec(["echo", "here"])
        await sandbox.close()
        return result.stdout

    seen = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    _expect(seen == b"here\n", "the same answers in another loop", seen)
