"""What a container is created with: the walls and limits of one sandbox, as Docker words them.

The root is read-only. /work, /tmp and /dev/shm are in memory, and count as memory. No capability, none to be
gained; the daemon's own seccomp filter stays on. Process 1 is our runner, under the same unprivileged user as
the commands: as process 1 it cannot be killed from inside, it is not dumpable and so cannot be traced, and it
holds no right that a command could win from it. (A runner that is root could switch users; it would also be
the one thing inside worth attacking.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_agents.errors import ConfigError, SandboxUnsupported, nearest
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import docker_runner, limits, runner
from vime_sandboxes.egress import proxy_environment
from vime_sandboxes.egress_policy import Policy
from vime_sandboxes.spec_checks import check_env, check_memory, check_positive

if TYPE_CHECKING:
    from docker import APIClient

WORKDIR = "/work"
DEFAULT_USER = "1000:1000"
OPTIONS = {
    "network": "the Docker network to use when `SandboxSpec.network` is true; default bridge",
    "pull": "'missing': fetch an image that is not there from its registry; default 'never'",
    "runtime": "the OCI runtime, as the daemon knows it, for example runsc",
}
"""Keys of `SandboxSpec.options`, and what each is for."""
_PODMAN_NPROC = 4096
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Image:
    """What is needed to know of an image."""

    id: str
    name: str
    """As the spec names it, for messages."""
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] | None = None


def check(spec: SandboxSpec, info: Mapping[str, Any]) -> None:
    """Refuse what this daemon (`info` is its own account of itself) cannot hold.

    Raises:
        ConfigError: an unknown option, an impossible value. SandboxUnsupported: a limit that would not hold.
    """
    _check_options(spec, info)
    check_memory(spec)
    check_positive(spec, "max_processes", "max_file_mb", "ttl_s", "cpus")
    if isinstance(spec.network, tuple):
        Policy(spec.network)
    check_env(spec)
    needed = [("MemoryLimit", "memory_mb"), ("PidsLimit", "max_processes")]
    needed += [("CpuCfsQuota", "cpus")] if spec.cpus is not None else []
    for key, field in needed:
        if info.get(key) is False or info.get(key.replace("Cpu", "CPU")) is False:
            raise SandboxUnsupported(
                f"this daemon cannot enforce SandboxSpec.{field} ({key} is off): it needs a writable control "
                "group, which rootless daemons have with control groups version 2 only"
            )


def _check_options(spec: SandboxSpec, info: Mapping[str, Any]) -> None:
    for key, value in spec.options.items():
        if key not in OPTIONS:
            guess = nearest(key, OPTIONS)
            hint = f"; did you mean {guess!r}?" if guess else ""
            known = ", ".join(OPTIONS)
            raise ConfigError(f"SandboxSpec.options: Docker's has no {key!r}{hint} (known: {known})")
        if key == "pull" and value not in ("missing", "never"):
            raise ConfigError(f"SandboxSpec.options['pull'] is 'missing' or 'never', got {value!r}")
    if "runtime" in spec.options and info.get("Runtimes") and spec.options["runtime"] not in info["Runtimes"]:
        known = ", ".join(sorted(info["Runtimes"]))
        raise SandboxUnsupported(f"this daemon has no runtime {spec.options['runtime']!r}; it has {known}")


def enforced(spec: SandboxSpec) -> frozenset[str]:
    """What holds, once `check` has passed."""
    found = {"filesystem", "file_size", "open_files", "processes", "memory", "disk", "ttl"}
    found |= {"cpus"} if spec.cpus is not None else set()
    return frozenset(found if spec.network is True else found | {"network"})


def runner_command(spec: SandboxSpec, ttl_s: float) -> list[str]:
    """What process 1 is in an image with Python."""
    return docker_runner.command(
        ttl_s=ttl_s,
        data_bytes=spec.memory_mb << 20,
        # These are limited for the container: the kernel counts RLIMIT_NPROC for a user over all containers.
        max_processes=_NO_LIMIT,
        file_bytes=spec.max_file_mb << 20,
    )


def create(
    client: APIClient,
    spec: SandboxSpec,
    image: Image,
    name: str,
    command: Sequence[str],
    labels: Mapping[str, str],
    info: Mapping[str, Any],
) -> str:
    """Create the container (blocking), on a daemon that says `info` of itself; its id."""
    memory = (spec.memory_mb + limits.RUNNER_MB) << 20
    quarter = (spec.memory_mb << 20) // 4
    sizes = {WORKDIR: 2 * quarter, "/tmp": quarter, **dict.fromkeys(image.volumes, quarter)}
    podman = is_podman(info)
    # Podman would set the limits that are not named to what it may not always give.
    unnamed = [{"Name": "nproc", "Soft": _PODMAN_NPROC, "Hard": _PODMAN_NPROC}] if podman else []
    owner = "mode=1777" if podman else _owner(spec)
    network = "none" if spec.network is not True else spec.options.get("network", "bridge")
    file_bytes = spec.max_file_mb << 20
    host_config = client.create_host_config(
        auto_remove=True,
        network_mode=network,
        read_only=True,
        tmpfs={path: f"rw,exec,nosuid,nodev,size={size},{owner}" for path, size in sizes.items()},
        shm_size=quarter,
        mem_limit=memory,
        memswap_limit=memory,
        nano_cpus=None if spec.cpus is None else int(spec.cpus * 1e9),
        pids_limit=spec.max_processes + 1,  # + 1: process 1 is counted too
        ulimits=[
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": file_bytes, "Hard": file_bytes},
            {"Name": "nofile", "Soft": runner.OPEN_FILES, "Hard": runner.OPEN_FILES},
            *unnamed,
        ],
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        runtime=spec.options.get("runtime"),
        # What the runner says is the protocol, not a log: it would fill the disk.
        log_config={"Type": "none"},
    )
    made = client.create_container(
        image.id,
        command=list(command[1:]),
        entrypoint=[command[0]],
        user=spec.user or DEFAULT_USER,
        environment=environment(spec),
        working_dir="/",  # named here, WORKDIR would become a folder of root's
        labels=dict(labels),
        name=name,
        hostname="sandbox",
        stdin_open=True,
        healthcheck={"test": ["NONE"]},
        host_config=host_config,
    )
    return str(made["Id"])


def is_podman(info: Mapping[str, Any]) -> bool:
    """Whether it is Podman that answers."""
    return "BuildahVersion" in info


def _owner(spec: SandboxSpec) -> str:
    # By number where there is one: where the image has such a folder, Docker takes over its mode.
    uid, _, gid = (spec.user or DEFAULT_USER).partition(":")
    return f"mode=1777,uid={uid},gid={gid or uid}" if uid.isdigit() else "mode=1777"


def environment(spec: SandboxSpec) -> dict[str, str]:
    """What every command starts with, on top of the image's own."""
    own = {"HOME": WORKDIR, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "USER": "sandbox"}
    way_out = proxy_environment() if isinstance(spec.network, tuple) else {}
    return own | way_out | dict(spec.env)


def read_image(client: APIClient, name: str) -> Image:
    """Look at an image (blocking)."""
    found = client.inspect_image(name)
    config = found.get("Config") or {}
    return Image(found["Id"], name, tuple(config.get("Volumes") or ()), config.get("Labels"))
