"""Attacks on what there is only so much of: processes, memory, disk, output, time."""

from __future__ import annotations

import time

from vime_agents.errors import SandboxDead, SandboxDiskFull, SandboxError
from vime_agents.sandbox import Sandbox, SandboxProvider
from vime_agents.testing.sandbox_attack_kit import attack, hostile, works_or_is_dead
from vime_agents.testing.sandbox_kit import expect, processes_with


@attack(max_processes=40)
async def fork_bomb(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Bombs of processes and of threads, one that ignores every signal among them, stay inside and end."""
    shell = await sandbox.exec(["sh", "-c", "b() { b | b & }; b; sleep 600", mark], timeout_s=2.0)
    expect(not shell.ok, "no success", shell)
    bomb = (
        "import os, signal, sys\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True:\n"
        "    try:\n"
        "        if os.fork() == 0: os.setsid()\n"
        "    except OSError: pass\n"
    )
    result = await hostile(sandbox, bomb, mark, timeout_s=2.0)
    expect(not result.ok, "no success", result)
    threads = (
        "import _thread, time\n"
        "n = 0\n"
        "while n < 5000:\n"
        "    try: _thread.start_new_thread(time.sleep, (600,)); n += 1\n"
        "    except RuntimeError: break\n"
        "print(n)\n"
    )
    result = await hostile(sandbox, threads, mark)
    if "processes" in sandbox.enforced and result.ok:
        expect(int(result.text) <= 48, "threads count as processes", result)
    await works_or_is_dead(sandbox)


_FILL = """\
import errno, os, sys
limit, total = int(sys.argv[2]), 0
for folder in ('.', '/tmp', '/var/tmp', '/dev/shm', '/run', '/dev'):
    n = 0
    while total < limit:
        try:
            with open(f'{folder}/fill-{n}', 'wb', buffering=0) as f:
                written = 0
                while written < 16 << 20 and total < limit:
                    count = f.write(bytes(1 << 20)); written += count; total += count
        except OSError:
            break
        n += 1
print(total)
"""


@attack(memory_mb=128, max_file_mb=64)
async def disk_filler(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Writing wherever it may ends at a limit; `write` then raises SandboxDiskFull; with room it works."""
    limit = 3 * 128 << 20
    try:
        result = await hostile(sandbox, _FILL, mark, str(limit), timeout_s=120.0)
    except SandboxDead:
        return  # files in memory count as memory: killing it all is an answer
    if "disk" in sandbox.enforced and result.ok:
        expect(int(result.text) < limit, "an end before three times the memory", result)
        try:
            for number in range(20):
                await sandbox.write(f"more-{number}", bytes(16 << 20))
        except SandboxDiskFull:
            pass
        except SandboxDead:
            return
        else:
            expect(False, "SandboxDiskFull from `write`", None)
    clean = "rm -rf ./* /tmp/* /var/tmp/* /dev/shm/* 2>/dev/null; echo new > file && cat file"
    after = await sandbox.exec(["sh", "-c", clean])
    expect(after.stdout == b"new\n", "room again", after)


_HOG = """\
import mmap, os, sys
kind, keep = sys.argv[2], []
if kind == 'many':
    for _ in range(16):
        if os.fork() == 0: break
while len(keep) < 512:
    if kind == 'shared':
        m = mmap.mmap(-1, 4 << 20); m.write(b'x' * (4 << 20)); keep.append(m)
    elif kind == 'memfd':
        fd = os.memfd_create('hog'); os.write(fd, b'x' * (4 << 20)); keep.append(fd)
    else:
        keep.append(bytearray(b'x') * (4 << 20))
print('had it all')
"""


@attack(memory_mb=128)
async def memory_hog(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """2 GB of private, shared or hidden memory, by one process or many, is a failed command (or SandboxDead).

    And `oom_killed` where the kernel had to end it.
    """
    for kind in ("private", "many", "shared", "memfd"):
        if kind in ("shared", "memfd") and "memory" not in sandbox.enforced:
            continue  # only what each process has of its own is bounded there
        try:
            result = await hostile(sandbox, _HOG, mark, kind, timeout_s=120.0)
        except SandboxDead:
            return
        expect(not result.ok and b"had it all" not in result.stdout, f"no 2 GB in 128 MB ({kind})", result)
        if result.signal == 9 and "memory" in sandbox.enforced:
            expect(result.oom_killed, "'out of memory' as the reason", result)
    await works_or_is_dead(sandbox)


_SURVIVE = """\
import os, signal, sys, time
for n in (1, 2, 3, 13, 15): signal.signal(n, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        os.execve(sys.executable, ['x', '-IS', '-c', 'import time; time.sleep(600)', sys.argv[1]], {})
    os._exit(0)
if os.fork() == 0:
    os.setsid(); os.kill(os.getpid(), signal.SIGSTOP)
print('up', flush=True); time.sleep(600)
"""


@attack()
async def outlive_the_command(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """What hides from a time-out (own sessions, orphans, ignored signals, a clean environment) ends at last.

    Descendants with the time-out; an orphan that left no trace with the sandbox: the caller looks for it.
    """
    result = await hostile(sandbox, _SURVIVE, mark, timeout_s=2.0)
    expect(result.timed_out and result.stdout == b"up\n", "timed out", result)
    left = await processes_with(sandbox, mark)
    expect(left <= 1, "at most the orphan that hid every trace", left)


@attack()
async def flood_the_output(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """1 GB of output is counted to the byte, and not kept; a flood that nobody reads waits."""
    exact = (
        "import os\nleft = 1 << 30\npiece = bytes(1 << 20)\n"
        "while left: left -= os.write(1, piece[:left])\nos.write(2, b'done')\n"
    )
    result = await sandbox.exec(["python3", "-IS", "-c", exact, mark], timeout_s=300.0, max_output=1000)
    expect(result.ok and result.stdout_bytes == 1 << 30, "2**30 bytes counted", result.stdout_bytes)
    expect(len(result.stdout) == 1000 and result.stderr == b"done", "1000 kept", len(result.stdout))
    endless = "import os, sys\nwhile True: os.write(1, bytes(1 << 16))\n"
    flood = await sandbox.spawn(["python3", "-IS", "-c", endless, mark])
    for _ in range(20):
        expect(await works_or_is_dead(sandbox), "it answers meanwhile", False)
    await flood.kill()
    ended = await flood.wait()
    expect(ended.stdout_bytes < 1 << 30, "the flood waited", ended.stdout_bytes)


_CLOCK = """\
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class Spec(ctypes.Structure): _fields_ = [('s', ctypes.c_long), ('ns', ctypes.c_long)]
for clock in (0, 1, 7):
    if libc.clock_settime(clock, ctypes.byref(Spec(10**9, 0))) == 0: print('set clock', clock)
if libc.settimeofday(ctypes.byref(Spec(10**9, 0)), None) == 0: print('set time of day')
if libc.adjtimex(ctypes.create_string_buffer(b'\\x01', 512)) == 0: print('set the frequency')
open('old', 'w').close(); os.utime('old', (0, -10**9)); os.utime('.', (2**33, 2**33))
"""


@attack()
async def play_with_time(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """The clock cannot be set; a program that stops itself still times out; durations are the owner's."""
    before = time.time() - time.monotonic()
    result = await hostile(sandbox, _CLOCK, mark)
    expect(result.ok and result.stdout == b"", "no clock set", result)
    drift_s = abs(time.time() - time.monotonic() - before)
    expect(drift_s < 5, "the clock of this machine as before", drift_s)
    stopped = await sandbox.exec(["sh", "-c", "kill -STOP $$; sleep 600"], timeout_s=1.0)
    expect(stopped.timed_out and 0.5 < stopped.duration_s < 60, "a stopped program times out", stopped)
    alarm = await sandbox.exec(["sh", "-c", "trap '' ALRM XCPU VTALRM TERM; sleep 600"], timeout_s=1.0)
    expect(alarm.timed_out, "signals are no way round", alarm)
    try:
        snapshot = await sandbox.snapshot()
    except SandboxError as error:
        expect(False, "odd times do not stop a snapshot", error)
    else:
        await provider.delete_snapshot(snapshot)
