"""Attacks on the answers: ending or imitating the program that reports what commands did."""

from __future__ import annotations

from vime_agents.errors import SandboxDead
from vime_agents.sandbox import Sandbox, SandboxProvider
from vime_agents.testing.sandbox_attack_kit import attack, hostile, works_or_is_dead
from vime_agents.testing.sandbox_kit import expect

_KILLS = (
    "kill -9 1",
    "kill -TERM 1; kill -INT 1; kill -HUP 1; kill -QUIT 1; kill -SEGV 1; kill -STOP 1",
    "kill -CHLD 1; kill -USR1 1; kill -PIPE 1; kill -ALRM 1",
    "kill -9 $PPID",
    "prlimit --pid 1 --nofile=0 --cpu=0 --data=0 --fsize=0 2>/dev/null",
    "renice 19 1 2>/dev/null; taskset -p 1 1 >/dev/null 2>&1; chrt -i -p 0 1 2>/dev/null",
    "kill -9 -1",
)


@attack()
async def kill_the_runner(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Signals and limits for whatever reports results: afterwards answers are exact, or SandboxDead."""
    for script in _KILLS:
        try:
            result = await sandbox.exec(["sh", "-c", f"{script}; exit 7", mark], timeout_s=30.0)
        except SandboxDead:
            return
        truth = result.exit_code == 7 or result.signal == 9 or result.timed_out
        expect(truth, "exit 7, or killed by itself", (script, result))
        if not await works_or_is_dead(sandbox):
            return


_FORGE = """\
import glob, os, socket, struct, sys
fields = [b'0', b'0', b'0', b'9', b'0', b'0.1']
payload = b''.join(struct.pack('!I', len(f)) + f for f in fields)
pairs = [(n, kind) for n in range(1, 40) for kind in range(16, 32)]
frames = b''.join(struct.pack('!IIB', len(payload), n, kind) + payload for n, kind in pairs)
for fd in range(3, 256):
    try: os.write(fd, frames); print('wrote to', fd, os.readlink(f'/proc/self/fd/{fd}'))
    except OSError: pass
for path in glob.glob('/proc/[0-9]*/fd/*'):
    if path.split('/')[2] in (str(os.getpid()), 'self'): continue
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK); os.write(fd, frames); print('wrote to', path)
    except OSError: pass
for pid in ('1', str(os.getppid())):
    for name in ('mem', 'environ', 'maps'):
        try: open(f'/proc/{pid}/{name}', 'rb').read(1); print('read', pid, name)
        except OSError: pass
    try:
        handle = os.pidfd_open(int(pid))
        import ctypes
        if ctypes.CDLL(None).syscall(438, handle, 0, 0) >= 0: print('took a file of', pid)
    except OSError: pass
sys.exit(7)
"""


@attack()
async def forge_the_exit_status(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """The way by which results go out cannot be opened, written or taken: exit 7 stays exit 7."""
    for _ in range(3):
        try:
            result = await hostile(sandbox, _FORGE, mark)
        except SandboxDead:
            return  # a false word ended it: safe, though not kind
        expect(result.exit_code == 7 and result.stdout == b"", "exit 7, no way found", result)
    await works_or_is_dead(sandbox)
