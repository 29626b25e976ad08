"""What is refused before a daemon is asked, and what a container is created with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vime_agents.errors import ConfigError, SandboxUnsupported
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes import docker_container, limits

SPEC = SandboxSpec(backend="docker", image="x", memory_mb=256, max_processes=10, max_file_mb=3)
INFO = {"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True, "Runtimes": {"runc": {}, "runsc": {}}}


class Client:
    """Keeps what it is asked to create."""

    def create_host_config(self, **settings: Any) -> dict[str, Any]:
        return settings

    def create_container(self, image: str, **settings: Any) -> dict[str, str]:
        self.image, self.settings = image, settings
        return {"Id": "c0ffee"}


def created(spec: SandboxSpec, volumes: tuple[str, ...] = (), info: dict[str, Any] = INFO) -> dict[str, Any]:
    client: Any = Client()
    image = docker_container.Image("sha256:1", "x", volumes)
    made = docker_container.create(client, spec, image, "vime-1", ["python3", "-c", "y"], {"a": "b"}, info)
    assert made == "c0ffee"
    assert client.image == "sha256:1"
    return client.settings


def test_the_walls() -> None:
    made = created(SPEC)
    host = made["host_config"]
    assert made["user"] == "1000:1000"
    assert (made["entrypoint"], made["command"]) == (["python3"], ["-c", "y"])
    assert host["network_mode"] == "none"
    assert host["read_only"] is True
    assert host["cap_drop"] == ["ALL"]
    assert host["security_opt"] == ["no-new-privileges"]
    assert host["auto_remove"] is True
    assert host["log_config"] == {"Type": "none"}
    assert host["mem_limit"] == host["memswap_limit"] == (256 + limits.RUNNER_MB) << 20
    assert host["pids_limit"] == 11
    assert host["nano_cpus"] is None
    assert {u["Name"]: u["Hard"] for u in host["ulimits"]} == {"core": 0, "fsize": 3 << 20, "nofile": 1024}


def test_what_is_in_memory_stays_below_the_limit_of_memory() -> None:
    host = created(SPEC)["host_config"]
    sizes = [int(o.partition("size=")[2].split(",")[0]) for o in host["tmpfs"].values()]
    assert sum(sizes) + host["shm_size"] == 256 << 20
    assert host["tmpfs"]["/work"] == "rw,exec,nosuid,nodev,size=134217728,mode=1777,uid=1000,gid=1000"
    podman = created(SPEC, info={**INFO, "BuildahVersion": "1"})
    assert podman["host_config"]["tmpfs"]["/work"] == "rw,exec,nosuid,nodev,size=134217728,mode=1777"
    assert "uid=" not in created(replace(SPEC, user="somebody"))["host_config"]["tmpfs"]["/work"]
    assert set(created(SPEC, ("/data",))["host_config"]["tmpfs"]) == {"/work", "/tmp", "/data"}


@pytest.mark.parametrize(
    ("network", "options", "mode"),
    [
        (False, {}, "none"),
        (True, {}, "bridge"),
        (True, {"network": "n"}, "n"),
        (False, {"network": "n"}, "none"),
    ],
)
def test_the_network(network: bool, options: dict[str, str], mode: str) -> None:
    spec = replace(SPEC, network=network, options=options)
    assert created(spec)["host_config"]["network_mode"] == mode
    assert ("network" in docker_container.enforced(spec)) is (not network)


def test_processors() -> None:
    spec = replace(SPEC, cpus=0.5)
    assert created(spec)["host_config"]["nano_cpus"] == 500_000_000
    assert docker_container.enforced(spec) - docker_container.enforced(SPEC) == {"cpus"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"netwrok": "x"}}, "no 'netwrok'; did you mean 'network'"),
        ({"options": {"pull": "always"}}, "'missing' or 'never', got 'always'"),
        ({"memory_mb": 16}, "memory_mb must be at least 32, got 16"),
        ({"ttl_s": 0.0}, "ttl_s must be positive, got 0.0"),
        ({"cpus": -1.0}, "cpus must be positive, got -1.0"),
        ({"env": {"a=b": "c"}}, "cannot be an environment variable"),
    ],
)
def test_wrong_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        docker_container.check(replace(SPEC, **change), INFO)


@pytest.mark.parametrize(
    ("spec", "info", "message"),
    [
        (SPEC, {**INFO, "MemoryLimit": False}, "cannot enforce SandboxSpec.memory_mb"),
        (SPEC, {**INFO, "PidsLimit": False}, "cannot enforce SandboxSpec.max_processes"),
        (replace(SPEC, cpus=1.0), {**INFO, "CpuCfsQuota": False}, "cannot enforce SandboxSpec.cpus"),
        (replace(SPEC, options={"runtime": "kata"}), INFO, "no runtime 'kata'; it has runc, runsc"),
    ],
)
def test_what_the_daemon_cannot_hold_is_refused(
    spec: SandboxSpec, info: dict[str, Any], message: str
) -> None:
    docker_container.check(SPEC, INFO)
    with pytest.raises(SandboxUnsupported, match=message):
        docker_container.check(spec, info)
