"""Attacks on the kernel's rules: tracing, namespaces, mounts, privileges."""

from __future__ import annotations

from vime_agents.sandbox import Sandbox, SandboxProvider
from vime_agents.testing.sandbox_attack_kit import attack, hostile, works_or_is_dead
from vime_agents.testing.sandbox_kit import expect

_TRACE = """\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
own = ctypes.create_string_buffer(8)
for pid in (1, os.getppid()):
    for request, name in ((16, 'ATTACH'), (0x4206, 'SEIZE')):
        if libc.ptrace(request, pid, None, None) == 0: print('traced', pid, name)
    local, far = ctypes.byref(Vec(ctypes.addressof(own), 8)), ctypes.byref(Vec(0x400000, 8))
    if libc.process_vm_readv(pid, local, 1, far, 1, 0) > 0: print('read memory', pid)
    if libc.process_vm_writev(pid, local, 1, far, 1, 0) > 0: print('wrote memory', pid)
"""


@attack()
async def trace_the_runner(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Tracing process 1 or the parent, or reading its memory, is refused."""
    result = await hostile(sandbox, _TRACE, mark)
    expect(result.ok and result.stdout == b"", "nothing traced", result)
    expect(await works_or_is_dead(sandbox), "alive afterwards", False)


_GAIN = """\
import ctypes, os, socket, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
for flag, name in ((0x10000000, 'user'), (0x20000, 'mount'), (0x20000000, 'pid'), (0x40000000, 'net')):
    if os.fork() == 0:
        if libc.unshare(flag) == 0: print('new namespace:', name, flush=True)
        os._exit(0)
    os.wait()
if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0: print('mounted')
if libc.umount2(b'/proc', 2) == 0: print('unmounted')
if libc.syscall(155 if os.uname().machine == 'x86_64' else 41, b'.', b'.') == 0: print('pivoted')
for name, call in (('chroot', lambda: os.chroot('.')), ('setuid', lambda: os.setuid(0)),
                   ('setgid', lambda: os.setgid(0)), ('setgroups', lambda: os.setgroups([0])),
                   ('nice', lambda: os.nice(-5)), ('hostname', lambda: socket.sethostname('x'))):
    try: call(); print('could', name)
    except OSError: pass
for number, name in ((246, 'kexec_load'), (175, 'init_module'), (321, 'bpf'), (298, 'perf_event_open'),
                     (304, 'open_by_handle_at'), (169, 'reboot'), (167, 'swapon'), (103, 'syslog')):
    if os.uname().machine == 'x86_64' and libc.syscall(number, 0, 0, 0, 0, 0) >= 0: print('could', name)
for folder in ('/usr/bin', '/usr/sbin', '/bin', '/usr/lib'):
    for n in os.listdir(folder) if os.path.isdir(folder) else ():
        try: mode = os.stat(f'{folder}/{n}').st_mode
        except OSError: continue
        if stat.S_ISREG(mode) and mode & stat.S_ISUID and os.access(f'{folder}/{n}', os.X_OK):
            with open('/proc/self/status') as f:
                if 'NoNewPrivs:\\t1' not in f.read(): print('may gain by', n)
status = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)
if int(status['CapEff'], 16) or os.getuid() == 0: print('privileged', status['CapEff'], os.getuid())
"""


@attack()
async def gain_privileges(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """New namespaces, mounts, other users, modules, bpf and set-user programs are all refused."""
    result = await hostile(sandbox, _GAIN, mark)
    expect(result.ok and result.stdout == b"", "nothing gained", result)
