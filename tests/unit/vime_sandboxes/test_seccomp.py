from __future__ import annotations

import errno
import platform
import re
import shutil
import struct
from pathlib import Path

import pytest

from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import seccomp
from vime_sandboxes.local import LocalSandboxProvider

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
REFUSED = FAIL | errno.EPERM


@pytest.fixture
async def sandbox():
    provider = LocalSandboxProvider()
    yield await provider.create(SandboxSpec(memory_mb=256))
    await provider.aclose()


def verdict(code: bytes, audit: int, number: int, *arguments: int) -> int:
    """What the kernel would do: a filter machine of our own, for processors that are not here."""
    values = [*arguments, *(0 for _ in range(6 - len(arguments)))]
    data = struct.pack("<IIQ6Q", number, audit, 0, *values)
    steps = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    accumulator = position = 0
    while True:
        operation, yes, no, value = steps[position]
        position += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        holds = {
            0x15: accumulator == value,
            0x35: accumulator >= value,
            0x45: bool(accumulator & value),
        }[operation]
        position += yes if holds else no


@pytest.mark.parametrize("name", seccomp.MACHINES)
def test_only_what_is_named_is_refused(name: str) -> None:
    machine = seccomp.MACHINES[name]
    code = seccomp.assemble(machine)
    special = {machine.clone, machine.ioctl, machine.socket, seccomp.CLONE3}
    for number in range(600):
        if number not in special:
            expected = REFUSED if number in machine.refused.values() else ALLOW
            assert verdict(code, machine.audit, number) == expected, number
    assert verdict(code, 0x40000003, 1) == KILL  # 32-bit x86
    assert verdict(code, machine.audit, 0x40000000 + 1) == REFUSED


@pytest.mark.parametrize("name", seccomp.MACHINES)
def test_arguments_decide_where_they_must(name: str) -> None:
    machine = seccomp.MACHINES[name]
    code = seccomp.assemble(machine)

    def of(number: int, *arguments: int) -> int:
        return verdict(code, machine.audit, number, *arguments)

    assert of(seccomp.CLONE3) == FAIL | errno.ENOSYS
    assert of(machine.clone, 0x3D0F00) == ALLOW  # a thread
    assert of(machine.clone, 0x01200011) == ALLOW  # a process
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert of(machine.clone, flag | 17) == REFUSED
    assert of(machine.ioctl, 0, 0x5401) == ALLOW
    assert of(machine.ioctl, 0, 0x5412) == REFUSED
    assert of(machine.ioctl, 0, (7 << 32) | 0x5412) == REFUSED  # the kernel looks at the lower half only
    assert of(machine.prlimit, 0, 7) == ALLOW
    assert of(machine.prlimit, 1, 7) == REFUSED  # the runner's
    for family in (1, 2, 10, 16):
        assert of(machine.socket, family, 1) == ALLOW
    for family in (17, 38, 40):
        assert of(machine.socket, family, 1) == FAIL | errno.EAFNOSUPPORT


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the header is of x86_64")
def test_numbers_are_the_kernels() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no header with the numbers of this kernel (package linux-libc-dev)")
    known = {n: int(v) for n, v in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    for name, number in seccomp.MACHINES["x86_64"].refused.items():
        assert known.get(name, number) == number, name


def test_the_other_numbers_are_the_kernels_too() -> None:
    header = Path("/usr/include/asm-generic/unistd.h")  # what aarch64 has
    if not header.exists():
        pytest.skip("no header with the generic numbers (package linux-libc-dev)")
    known = {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\n", header.read_text())}
    for name, number in seccomp.MACHINES["aarch64"].refused.items():
        assert known.get(name, number) == number, name


_CALLS = """
import ctypes, errno, sys
call = ctypes.CDLL(None, use_errno=True).syscall
for number in map(int, sys.argv[1:]):
    ctypes.set_errno(0)
    result = call(ctypes.c_long(number), 0, 0, 0, 0, 0, 0)
    print(number, result, errno.errorcode.get(ctypes.get_errno()))
"""


async def test_refused_calls_fail_inside(sandbox) -> None:
    machine = seccomp.MACHINES[platform.machine()]
    numbers = sorted(machine.refused.values())
    result = await sandbox.exec(["python3", "-IS", "-c", _CALLS, *map(str, numbers), str(seccomp.CLONE3)])
    lines = result.text.splitlines()
    assert lines == [*(f"{n} -1 EPERM" for n in numbers), f"{seccomp.CLONE3} -1 ENOSYS"]
    assert "syscalls" in sandbox.enforced
    status = await sandbox.exec(["grep", "Seccomp:", "/proc/self/status"])
    assert status.text.split() == ["Seccomp:", "2"]
    families = (
        "import socket\n"
        "for family in (40, 38):\n"
        "    try: socket.socket(family); print('made', family)\n"
        "    except OSError as error: print(error.errno)\n"
    )
    assert (await sandbox.exec(["python3", "-IS", "-c", families])).text == "97\n97\n"


_THREADS = """
import concurrent.futures, multiprocessing, sqlite3, subprocess, threading
if __name__ == "__main__":
    found = []
    threads = [threading.Thread(target=found.append, args=(n,)) for n in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            found.append(sum(pool.map(abs, range(-9, 0))))
    base = sqlite3.connect("base.db")
    base.execute("pragma journal_mode=wal"); base.execute("create table t (n)")
    base.executemany("insert into t values (?)", [(n,) for n in range(100)]); base.commit()
    found.append(base.execute("select sum(n) from t").fetchone()[0])
    found.append(subprocess.check_output(["sh", "-c", "echo $((6 * 7))"], text=True).strip())
    print(sorted(found[:8]) == list(range(8)), found[8:])
"""


async def test_ordinary_programs_work(sandbox) -> None:
    await sandbox.write("program.py", _THREADS.encode())
    result = await sandbox.exec(["python3", "program.py"])
    assert result.text == "True [45, 45, 4950, '42']\n", result.stderr
    if shutil.which("git"):
        script = (
            "git init -q . && git config user.email a@b && git config user.name c && git add program.py "
            "&& git commit -qm first && git log --format=%s"
        )
        result = await sandbox.exec(["sh", "-c", script])
        assert result.text == "first\n", result.stderr
    if shutil.which("gcc"):
        source = '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n'
        await sandbox.write("main.c", source.encode())
        result = await sandbox.exec(["sh", "-c", "gcc -o main main.c && ./main"])
        assert result.text == "compiled\n", result.stderr
