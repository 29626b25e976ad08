"""Checks of a sandbox's walls: what the inside can see, and how much it can take."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from dataclasses import replace

from vime_agents.sandbox import SandboxProvider, SandboxSpec
from vime_agents.testing.sandbox_kit import check, expect, opened, python

# ---------------------------------------------------------------------------------------- isolation


@check
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
            async with opened(provider, replace(spec, env={"GIVEN": "1"})) as sandbox:
                result = await sandbox.exec(
                    ["python3", "-IS", "-c", program, canary.name, "/etc/shadow"], stdin=secret.encode()
                )
                expect(result.ok and result.stdout == b"", "no secret of the host", result)
                env = await sandbox.exec(["sh", "-c", f'echo "$GIVEN,${name}"'])
                expect(env.stdout == b"1,\n", "only the environment that was given", env)
    finally:
        del os.environ[name]


@check
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
        async with opened(provider, replace(spec, network=False)) as sandbox:
            result = await python(sandbox, program)
            expect(result.ok and result.stdout == b"", "nothing reached", result)
            expect("network" in sandbox.enforced, "'network' in enforced", sandbox.enforced)
    finally:
        server.close()
        await server.wait_closed()


@check
async def commands_have_no_privileges(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Not root, no capabilities, none to be gained, and the system's files are read-only."""
    program = (
        "import os\n"
        "s = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)\n"
        "print(os.getuid() != 0, int(s['CapEff'], 16), s['NoNewPrivs'])\n"
        "for p in ('/usr/x', '/etc/x', '/x', '/dev/x'):\n"
        "    p += '-vime-check'\n"
        "    try: open(p, 'w'); os.remove(p); print('wrote', p)\n"
        "    except OSError: pass\n"
    )
    async with opened(provider, spec) as sandbox:
        result = await python(sandbox, program)
        expect(result.stdout == b"True 0 1\n", "no privileges", result)


# ------------------------------------------------------------------------------------------- limits


@check
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
    async with opened(provider, spec) as sandbox:
        forker = await sandbox.spawn(["python3", "-IS", "-c", program])
        _, said = await anext(forker.output())
        await forker.kill()
        expect(10 <= int(said) <= 20, "at most 20 processes, and nearly as many", said)
        bomb = await sandbox.exec(["sh", "-c", "b() { b | b & }; b; sleep 600"], timeout_s=1.0)
        expect(not bomb.ok, "a fork bomb does not succeed", bomb)
        after = await sandbox.exec(["sh", "-c", "echo $(echo alive)"])
        expect(after.stdout == b"alive\n", "a command works after the fork bomb", after)


@check
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
    async with opened(provider, replace(spec, memory_mb=128)) as sandbox:
        result = await python(sandbox, one)
        expect(not result.ok and not result.timed_out, "a hog of 4 GB in 128 MB fails", result)
        if "memory" in sandbox.enforced:
            result = await python(sandbox, many)
            expect(result.ok and int(result.text) <= 9, "of 30 times 16 MB, 9 at most fit into 128", result)
        expect(await sandbox.alive(), "alive after the hog", False)


@check
async def files_are_bounded(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A command cannot write a file of more than `max_file_mb`."""
    async with opened(provider, replace(spec, max_file_mb=1)) as sandbox:
        result = await sandbox.exec(["sh", "-c", "head -c 5000000 /dev/zero > big; stat -c %s big"])
        expect(int(result.text or 0) <= 1 << 20, "at most 1 MiB", result)
