"""Plain processes of this machine, for trusted code where no sandbox works. There are no walls.

Commands run as the owner's own user, see its files, its network and its other processes, and can kill
anything of its. What holds is in `Sandbox.enforced`: the time to live, file_size, open_files, and
memory_per_process, or memory, processes and cpus where control groups can be made. A process that clears its
environment, leaves its session and loses its parent survives its command's time-out, though not its sandbox.
Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from vime_agents.errors import SandboxUnavailable, SandboxUnsupported
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import limits, local, local_marks, process, runner_bundle
from vime_sandboxes.local_sandbox import LocalSandbox
from vime_sandboxes.ownership import owner, owner_alive

_PREFIX = "vime-unsafe-"
_NO_LIMIT = 1 << 30
"""The kernel counts RLIMIT_NPROC for a user over the whole machine: not by the runner, then."""


class UnsafeBox(process.BoxProcess):
    """The runner, and the folder that it works in."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, errors: int, folder: Path
    ) -> None:
        super().__init__(process, channel, errors)
        self._folder = folder

    def enforced(self, spec: SandboxSpec) -> frozenset[str]:
        """Which limits hold."""
        groups = self.group.controllers
        found = {"file_size", "open_files", "ttl"}
        found.add("memory" if "memory" in groups else "memory_per_process")
        found |= {"processes"} if "pids" in groups else set()
        found |= {"cpus"} if "cpu" in groups else set()
        return frozenset(found)

    def kill(self) -> None:
        """Let the runner end: it kills what it started, and removes the folder."""
        with contextlib.suppress(OSError):  # closed already
            self.channel.shutdown(socket.SHUT_RDWR)

    async def end(self) -> None:
        """End it, wait, and give everything back. Bounded in time."""
        await super().end()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


class UnsafeSandbox(LocalSandbox):
    """A folder, and a runner in it; see `vime_agents.sandbox.Sandbox`."""

    backend = "unsafe"

    def __init__(
        self, spec: SandboxSpec, labels: Mapping[str, str], on_release: Callable[[LocalSandbox], object]
    ) -> None:
        super().__init__(spec, labels, on_release)
        self._folder = Path(tempfile.gettempdir(), _PREFIX + "+".join((*owner().split(":"), self.id)))
        self.workdir = str(self._folder / "work")

    async def _start_box(self, spec: SandboxSpec) -> process.BoxProcess:
        self._folder.mkdir(mode=0o700)
        for name in ("work", "tmp"):
            (self._folder / name).mkdir(mode=0o700)
        try:
            box = _spawn(spec, self._folder, local_marks.mark(self.backend, self.id, self.labels))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        box.group = limits.make_control_group(
            limits.group_name(),
            memory_mb=spec.memory_mb,
            max_processes=spec.max_processes,
            spare_processes=1,  # nothing else counts them
            cpus=spec.cpus,
        )
        box.group.add(box.pid)
        if spec.cpus is not None and "cpu" not in box.group.controllers:
            await asyncio.shield(box.end())
            raise SandboxUnsupported(f"`cpus={spec.cpus:g}` cannot be enforced here: no cpu control group")
        return box

    def _check_user(self, user: str | None) -> None:
        if user not in (None, getpass.getuser(), str(os.getuid())):
            raise SandboxUnsupported(f"the unsafe backend runs commands as its owner, not as {user!r}")


class UnsafeProvider(local.LocalSandboxProvider):
    """Makes them; see `vime_agents.sandbox.SandboxProvider`. Never chosen but by its name."""

    name = "unsafe"
    sandbox_class = UnsafeSandbox

    def _check(self, spec: SandboxSpec) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable(f"the unsafe backend needs Linux, this is {sys.platform}")
        local.check(spec)
        if isinstance(spec.network, tuple):
            raise SandboxUnsupported("SandboxSpec.network: the unsafe backend holds nothing back")
        _warn_once()
        _remove_orphans_once()


@cache
def _warn_once() -> None:
    warnings.warn(
        "SandboxSpec.backend='unsafe' is NOT a sandbox: what runs in it can read, change and send everything "
        "that you can. Use it for code that you trust as your own.",
        RuntimeWarning,
        stacklevel=2,
    )


def _spawn(spec: SandboxSpec, folder: Path, mark: str) -> UnsafeBox:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    errors, program = os.memfd_create("errors"), os.memfd_create("runner")
    owner_fd = os.pidfd_open(os.getpid())
    try:
        os.write(program, runner_bundle.compiled())
        numbers = (float(spec.ttl_s), spec.memory_mb << 20, _NO_LIMIT, spec.max_file_mb << 20, owner_fd)
        runner = subprocess.Popen(
            [sys.executable, "-IS", f"/proc/self/fd/{program}", *map(str, numbers), str(folder), mark],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors,
            pass_fds=(program, owner_fd),
            cwd=folder / "work",
            env=_environment(folder) | dict(spec.env),
            start_new_session=True,  # a Ctrl-C at the terminal is for the owner to handle
        )
    except BaseException:
        ours.close()
        os.close(errors)
        raise
    finally:
        theirs.close()
        os.close(program)
        os.close(owner_fd)
    return UnsafeBox(runner, ours, errors, folder)


def _environment(folder: Path) -> dict[str, str]:
    """What every command starts with; but for PATH, nothing is inherited from the owner."""
    path = os.environ.get("PATH", os.defpath)
    return {"HOME": str(folder / "work"), "LANG": "C.UTF-8", "TMPDIR": str(folder / "tmp"), "PATH": path}


@cache
def _remove_orphans_once() -> None:
    """Remove the folders of owners that were killed together with their runners."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if owner_alive(":".join(folder.name.removeprefix(_PREFIX).split("+")[:4])) is False:
            shutil.rmtree(folder, ignore_errors=True)
