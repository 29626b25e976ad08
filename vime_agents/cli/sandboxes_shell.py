"""`vime-agents sandboxes shell`: talk to a shell, or to one program, in a new sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from vime_agents import registry
from vime_agents.cli.sandboxes_flags import Parser, spec_of
from vime_agents.sandbox import Sandbox, SandboxProcess, SandboxProvider, SandboxSpec

MANAGED = "vime_sandboxes.managed:ManagedProvider"
"""A string: the core does not import its plug-ins."""
CHUNK = 1 << 16

_PLAIN = "if command -v bash >/dev/null; then exec bash --norc --noprofile; else exec sh; fi"
# Without a terminal inside, bash begins with two lines of complaint: they are dropped, the rest is not.
_PROMPTING = """\
if command -v bash >/dev/null; then
    exec 3>&2 2>/dev/null
    export PROMPT_COMMAND='exec 2>&3 3>&-; unset PROMPT_COMMAND'
    exec bash --norc --noprofile --noediting -i
fi
exec sh -i"""

EPILOG = """\
SPEC is one of
  local                           a backend, with the defaults of SandboxSpec
  docker:IMAGE, e2b:TEMPLATE      a backend and what is inside
  Calculator-v0, module:Class     an environment: the sandbox that its episodes get
  '{"backend": "local", "memory_mb": 256, "network": true}'
                                  the fields of SandboxSpec, as JSON

Lines go in, output comes out; there is no terminal inside (no vi, no top). Ctrl-C interrupts the program
inside, Ctrl-D ends the input and with it the shell, Ctrl-\\ ends the sandbox at once. The exit code is the
shell's; 128 + N when signal N ended it. The sandbox and everything in it end with this command, in any case.
"""


def run(argv: Sequence[str]) -> int:
    """Parse the flags and talk."""
    parser = Parser("shell", "A shell in a new sandbox.", usage="SPEC [--command COMMAND]", epilog=EPILOG)
    parser.add_argument("spec", metavar="SPEC", help="what sandbox; see below")
    parser.add_argument(
        "--command", metavar="COMMAND", help="a command line for sh instead of the shell: 'python3 -iq'"
    )
    flags = parser.parse(argv)
    spec = spec_of(flags.spec)
    script = flags.command or (_PROMPTING if sys.stdin.isatty() else _PLAIN)
    return asyncio.run(_shell(spec, script))


async def _shell(spec: SandboxSpec, script: str) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    ended_by: list[int] = []

    def end(number: int) -> None:
        if not ended_by:
            ended_by.append(number)
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        loop.add_signal_handler(number, end, number)
    try:
        return await _talk(spec, script)
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return 128 + ended_by[0]


async def _talk(spec: SandboxSpec, script: str) -> int:
    provider: SandboxProvider = registry.load_object(MANAGED)(
        registry.sandbox_provider(spec.backend), run="shell"
    )
    try:
        sandbox = await provider.create(spec)
        process = await sandbox.spawn(["sh", "-c", script])
        if sys.stdin.isatty():
            print(f"sandbox {sandbox.id} of backend {spec.backend}; Ctrl-D ends it", file=sys.stderr)
        return await _converse(sandbox, process)
    finally:
        await provider.aclose()


async def _converse(sandbox: Sandbox, process: SandboxProcess) -> int:
    """Until the program ends; its exit code."""
    loop = asyncio.get_running_loop()
    interrupts: set[asyncio.Task[None]] = set()

    def interrupt() -> None:
        task = asyncio.create_task(_interrupt(sandbox, process))
        interrupts.add(task)
        task.add_done_callback(interrupts.discard)

    # It stays until the loop ends: a Ctrl-C while the sandbox is closed must not keep it from being closed.
    loop.add_signal_handler(signal.SIGINT, interrupt)
    feeding = asyncio.create_task(_feed(process))
    try:
        async for stream, data in process.output():
            target = sys.stdout if stream == "stdout" else sys.stderr
            target.buffer.write(data)
            target.buffer.flush()
        result = await process.wait()
    finally:
        for task in (feeding, *interrupts):
            task.cancel()
        await asyncio.gather(feeding, *interrupts, return_exceptions=True)
    return 128 + (result.signal or signal.SIGKILL) if result.exit_code is None else result.exit_code


async def _interrupt(sandbox: Sandbox, process: SandboxProcess) -> None:
    """What a terminal does at Ctrl-C: the signal is for the program in front, not its shell alone."""
    sent = await sandbox.exec(["sh", "-c", 'kill -s INT -- "-$0"', str(process.pid)])
    if not sent.ok:
        await process.kill(signal.SIGINT)


async def _feed(process: SandboxProcess) -> None:
    """Our input to the program, until either ends."""
    with contextlib.suppress(BrokenPipeError):
        while data := await _read(sys.stdin.fileno()):
            await process.write(data)
        await process.close_stdin()


async def _read(fd: int) -> bytes:
    """What there is, as soon as there is something; b"" at the end. No thread is left waiting for it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        return os.read(fd, CHUNK)  # a regular file: nothing to wait for
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
    return os.read(fd, CHUNK)
