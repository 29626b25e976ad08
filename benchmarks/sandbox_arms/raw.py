"""What our sandboxes are compared with: the same work by hand, as little of it as does the job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vime_sandboxes import profile

_RUNNER = """\
import subprocess, sys
for line in sys.stdin:
    done = subprocess.run(['true'], capture_output=True)
    print(done.returncode, flush=True)
"""


_USER = 1 << 20
"""Some user without an account."""


class PipeRunner:
    """A Python process that runs `true` for each line that it reads, and answers with its exit status."""

    def __init__(self) -> None:
        command = [sys.executable, "-IS", "-c", _RUNNER]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self) -> None:
        """One round trip."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "0\n":
            raise RuntimeError("the raw runner failed")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def boot_bwrap(*, as_user: bool = False) -> float:
    """Milliseconds until Python speaks in a bubblewrap with the same namespaces; it is ended afterwards.

    `as_user`: as an unprivileged user, which is a wall too: else root inside is root outside, where root is
    who runs this.
    """
    prefix = os.path.realpath(sys.base_prefix)
    python_from = profile.find_interpreter().source if as_user else prefix
    command = [str(profile.find_bwrap()), "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    command += ["--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
    if not prefix.startswith("/usr"):
        command += ["--ro-bind", python_from, prefix]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/work", "--chdir", "/work"]
    python = f"{prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    command += [python, "-IS", "-c", "import sys; print('ready', flush=True); sys.stdin.read()"]
    # By their open files, which another user may read wherever they are.
    opened = [os.open(p, os.O_RDONLY) for p in profile.bwrap_libraries(profile.find_bwrap())]
    program = os.open(profile.find_bwrap(), os.O_RDONLY)
    libraries = ":".join(f"/proc/self/fd/{fd}" for fd in opened)
    user = _USER if as_user and os.geteuid() == 0 else None
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        executable=f"/proc/self/fd/{program}",
        pass_fds=(program, *opened),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"LD_PRELOAD": libraries} if libraries else {},
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    elapsed_ms = (time.perf_counter() - started) * 1000
    process.communicate()  # it reads end-of-file, and ends
    for fd in (program, *opened):
        os.close(fd)
    if said != b"ready\n":
        raise RuntimeError("the raw bubblewrap did not start")
    return elapsed_ms


def pipe_tar(
    source: Path, target: Path, unpack: list[str] | None = None, pack: list[str] | None = None
) -> float:
    """Milliseconds for a folder's content through two tars and a pipe; either may be another command."""
    target.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    packing = subprocess.Popen(pack or ["tar", "-cf", "-", "-C", str(source), "."], stdout=subprocess.PIPE)
    unpacking = subprocess.run(
        unpack or ["tar", "-xf", "-", "-C", str(target)], stdin=packing.stdout, check=False
    )
    assert packing.stdout is not None
    packing.stdout.close()
    if packing.wait() or unpacking.returncode:
        raise RuntimeError("tar failed")
    return (time.perf_counter() - started) * 1000


class RawDocker:
    """The package `docker` as its documentation shows it."""

    def __init__(self, host: str, image: str) -> None:
        import docker

        self._client: Any = docker.DockerClient(base_url=host)
        self._host, self._image = host, image
        self.box: Any = self._create()
        """A running container."""

    def boot(self) -> float:
        """Milliseconds to create and start a container; it is removed afterwards."""
        started = time.perf_counter()
        box = self._create()
        elapsed_ms = (time.perf_counter() - started) * 1000
        box.remove(force=True)
        return elapsed_ms

    def run(self) -> None:
        """`docker exec` of `true`."""
        if self.box.exec_run(["true"]).exit_code != 0:
            raise RuntimeError("docker exec failed")

    def tar_in(self) -> list[str]:
        """A command that unpacks its input in the container."""
        return ["docker", "-H", self._host, "exec", "-i", self.box.id, "tar", "-xf", "-", "-C", "/work"]

    def tar_out(self) -> list[str]:
        """A command that packs what `tar_in` unpacked."""
        return ["docker", "-H", self._host, "exec", "-i", self.box.id, "tar", "-cf", "-", "-C", "/work", "."]

    def close(self) -> None:
        """Remove the container."""
        self.box.remove(force=True)
        self._client.close()

    def _create(self) -> Any:
        box = self._client.containers.create(
            self._image,
            ["sleep", "3600"],
            network_mode="none",
            init=True,
            mem_limit="512m",
            tmpfs={"/work": "size=400m"},
        )
        box.start()
        return box
