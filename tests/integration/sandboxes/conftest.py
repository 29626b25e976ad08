"""A Docker daemon of the tests' own, for all of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.sandboxes import docker_daemon
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.docker import DockerSandboxProvider


@pytest.fixture(scope="session")
def daemon() -> Iterator[docker_daemon.Daemon]:
    """A daemon with PYTHON_IMAGE, found by DOCKER_HOST. The tests fail with its log if it does not start."""
    before = os.environ.get("DOCKER_HOST")
    with docker_daemon.running_daemon() as running:
        running.import_image(docker_daemon.python_root_tar(), docker_daemon.PYTHON_IMAGE)
        os.environ["DOCKER_HOST"] = running.host
        yield running
    if before is None:
        del os.environ["DOCKER_HOST"]
    else:
        os.environ["DOCKER_HOST"] = before


@pytest.fixture
async def docker_provider(daemon: docker_daemon.Daemon) -> AsyncIterator[DockerSandboxProvider]:
    """A provider; at the end nothing that it made is left on the daemon."""
    made = DockerSandboxProvider()
    yield made
    await made.aclose()
    left = daemon.docker("ps", "-a", "--format", "{{.Names}} {{.Status}}").split("\n")
    assert [line for line in left if line.startswith("vime-")] == []


@pytest.fixture
def python_spec() -> SandboxSpec:
    """In the image with Python."""
    return SandboxSpec(backend="docker", image=docker_daemon.PYTHON_IMAGE)
