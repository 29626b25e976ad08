"""The system calls that nothing in a local sandbox may make, as a filter for bubblewrap's `--seccomp`.

What is refused needs privileges that a sandbox does not have, or is a part of the kernel that ordinary
programs do not use and that many attacks on kernels began with. All else is allowed: compilers, interpreters,
databases and threads work. A refused call fails with EPERM, as it would for lack of privileges.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass
from functools import cache

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where things are in `struct seccomp_data`; of an argument, the lower half comes first."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into somebody else's terminal
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink; AF_VSOCK would reach the host of a virtual machine

# Calls from number 424 on have the same one everywhere.
_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
_X86_64 = {
    "ptrace": 101,
    "syslog": 103,
    "uselib": 134,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "_sysctl": 156,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "get_kernel_syms": 177,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "lookup_dcookie": 18,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}
CLONE3 = 435


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor architecture, as the kernel's filters know it."""

    audit: int
    clone: int
    ioctl: int
    socket: int
    prlimit: int
    refused: dict[str, int]
    """Name -> number."""


MACHINES = {
    "x86_64": Machine(0xC000003E, clone=56, ioctl=16, socket=41, prlimit=302, refused=_X86_64 | _COMMON),
    "aarch64": Machine(0xC00000B7, clone=220, ioctl=29, socket=198, prlimit=261, refused=_AARCH64 | _COMMON),
}


@cache
def program() -> bytes | None:
    """The filter for this machine; None for a processor that is not known here."""
    machine = MACHINES.get(platform.machine())
    return None if machine is None else assemble(machine)


def assemble(machine: Machine) -> bytes:
    """The filter as the kernel reads it: one `struct sock_filter` after the other."""
    refuse = _FAIL | errno.EPERM
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, machine.audit, no=0, yes=1),
        _step(_RETURN, _KILL),  # the same kernel's 32-bit calls have other numbers
        _step(_LOAD, _NUMBER),
        _step(_GREATER_EQUAL, _X32, yes=0, no=1),
        _step(_RETURN, refuse),
    ]
    for number in sorted(machine.refused.values()):
        code += [_step(_EQUAL, number, yes=0, no=1), _step(_RETURN, refuse)]
    # Its flags are in memory, which a filter cannot see. Without it, libraries use clone.
    code += [_step(_EQUAL, CLONE3, yes=0, no=1), _step(_RETURN, _FAIL | errno.ENOSYS)]
    namespaces = [
        _step(_ANY_BIT, _NEW_NAMESPACES, yes=0, no=1),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
    ]
    code += _of_argument(machine.clone, 0, namespaces)
    typing = [s for n in _TERMINAL_INPUT for s in (_step(_EQUAL, n, yes=0, no=1), _step(_RETURN, refuse))]
    code += _of_argument(machine.ioctl, 1, [*typing, _step(_RETURN, _ALLOW)])
    known = [s for n in _FAMILIES for s in (_step(_EQUAL, n, yes=0, no=1), _step(_RETURN, _ALLOW))]
    code += _of_argument(machine.socket, 0, [*known, _step(_RETURN, _FAIL | errno.EAFNOSUPPORT)])
    # Of other processes: a limit set to nothing would end the runner, and with it the sandbox.
    own = [_step(_EQUAL, 0, yes=0, no=1), _step(_RETURN, _ALLOW), _step(_RETURN, refuse)]
    code += _of_argument(machine.prlimit, 0, own)
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _of_argument(number: int, argument: int, steps: list[bytes]) -> list[bytes]:
    """For one system call, decide by the lower half of an argument."""
    load = _step(_LOAD, _FIRST_ARGUMENT + 8 * argument)
    return [_step(_EQUAL, number, yes=0, no=len(steps) + 1), load, *steps]


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many to skip."""
    return struct.pack("=HBBI", code, yes, no, value)
