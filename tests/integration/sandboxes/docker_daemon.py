"""A Docker daemon of the tests' own: its data in memory, its socket private, no change to the host's network.

    with running_daemon() as daemon:
        daemon.import_image(python_root_tar(), PYTHON_IMAGE)

Images are made of this machine's own Debian packages, so no registry is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON_IMAGE = "vime-test/python:1"
BUSYBOX_IMAGE = "vime-test/busybox:1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_DEBIAN_PACKAGES = ("docker.io", "busybox-static")
_COMMANDS = ["bash", "coreutils", "dash", "findutils", "grep", "gzip", "procps", "sed", "tar"]
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|info|locale|lintian|bash-completion|bug)/|/usr/share/perl")
# Ends the daemon $1 and removes its folder $2 when the tests are gone without having done so.
_WATCH = """\
cat >/dev/null
kill "$1"
while kill -0 "$1" 2>/dev/null; do sleep 0.1; done
while read -r _ target _; do case $target in "$2"/*) umount -l "$target" ;; esac; done </proc/mounts
rm -rf "$2"
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Daemon:
    """A running dockerd."""

    folder: Path
    process: subprocess.Popen[bytes]
    watcher: subprocess.Popen[bytes]

    @property
    def host(self) -> str:
        """What DOCKER_HOST is set to."""
        return f"unix://{self.folder}/docker.sock"

    @property
    def log(self) -> str:
        """The end of what it printed."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run the command line client; its standard output."""
        done = subprocess.run(
            ["docker", "-H", self.host, *arguments], input=stdin, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"docker {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode()

    def import_image(self, tar: Path, name: str) -> None:
        """Make an image out of a root file system."""
        if not self.docker("images", "-q", name).strip():
            self.docker("import", "-c", f"ENV PATH={_PATH}", str(tar), name)

    def stop(self) -> None:
        """End it and its containers; give its folder back."""
        self.terminate()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (target := line.split()[1]).startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", target], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def terminate(self) -> None:
        """End the daemon and its containers; the folder stays."""
        self.watcher.kill()
        self.watcher.communicate()
        for name in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
                return

    def start(self) -> None:
        """Start it (again), and wait until it answers.

        Raises:
            RuntimeError: it does not; with its log.
        """
        self.process = _start(self.folder)
        self.watcher = subprocess.Popen(
            ["sh", "-c", _WATCH, "sh", str(self.process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while subprocess.run(
            ["docker", "-H", self.host, "version"], capture_output=True, check=False
        ).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.terminate()
                raise RuntimeError(f"dockerd did not start:\n{self.log}")
            time.sleep(0.05)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    log = (folder / "log").open("ab")
    with log:
        return subprocess.Popen(
            [
                "dockerd",
                *("--data-root", str(folder / "data")),
                *("--exec-root", str(folder / "exec")),
                *("--pidfile", str(folder / "pid")),
                *("-H", f"unix://{folder}/docker.sock"),
                *("--iptables=false", "--bridge=none", "--log-driver=none"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextlib.contextmanager
def running_daemon() -> Iterator[Daemon]:
    """A new daemon, stopped at the end.

    Raises:
        RuntimeError: it cannot be installed or started here; with the reason.
    """
    install()
    folder = Path(tempfile.mkdtemp(prefix="vime-dockerd-", dir="/dev/shm"))
    daemon = Daemon.__new__(Daemon)
    daemon.folder = folder
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def install() -> None:
    """Install dockerd and a static busybox from Debian, unless they are there."""
    if shutil.which("dockerd") and shutil.which("busybox"):
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends"]):
        packages = _DEBIAN_PACKAGES if command[1] == "install" else ()
        done = subprocess.run([*command, *packages], capture_output=True, env=environment, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")


def python_root_tar() -> Path:
    """A root file system with Python 3 and the usual commands; made once for each state of the packages."""
    packages = _closure(["python3", *_COMMANDS])
    states = _run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages)
    key = hashlib.sha256((states + Path(__file__).read_text()).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("VIME_AGENTS_CACHE") or Path.home() / ".cache" / "vime-agents") / "images"
    target = cache / f"python-{key}.tar"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
            _write_root(file, packages)
        os.replace(file.name, target)
    return target


def busybox_context(folder: Path) -> Path:
    """A folder with a Dockerfile of an image that has a shell and no Python."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", folder / "busybox")
    (folder / "Dockerfile").write_text(
        'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'
    )
    return folder


def _closure(names: list[str]) -> list[str]:
    """The packages and all that they depend on, of what is installed here."""
    depends: dict[str, list[str]] = {}
    table = _run("dpkg-query", "-W", "-f", "${Package}|${Pre-Depends}, ${Depends}\n")
    for line in table.splitlines():
        name, _, listed = line.partition("|")
        depends[name] = [re.split(r"[ :(|]", part.strip())[0] for part in listed.split(",") if part.strip()]
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found and name in depends and name not in ("debconf", "perl-base", "dpkg"):
            found.add(name)
            todo += depends[name]
    return sorted(found)


def _write_root(file: tempfile._TemporaryFileWrapper[bytes], packages: list[str]) -> None:
    paths = {line for line in _run("dpkg-query", "-L", *packages).splitlines() if line.startswith("/")}
    paths |= {"/etc/ld.so.cache", "/etc/alternatives/awk", "/usr/bin/awk"}
    seen: set[str] = set()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(paths):
            # /bin and /lib are links to folders of /usr: a file is put where it really is.
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            if real in seen or real == "/" or _LEFT_OUT.match(real) or not os.path.lexists(real):
                continue
            seen.add(real)
            tar.add(real, arcname=real.lstrip("/"), recursive=False)
        for name in ("bin", "sbin", "lib", "lib64", "lib32", "libx32"):
            if os.path.islink(f"/{name}") and f"/{name}" not in seen:
                tar.add(f"/{name}", arcname=name, recursive=False)
        for name, text in (
            ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
            ("etc/group", "root:x:0:\n"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, mode in (("tmp", 0o1777), ("root", 0o700), ("var/tmp", 0o1777), ("proc", 0o755)):
            if f"/{name}" not in seen:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, mode
                tar.addfile(entry)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()
