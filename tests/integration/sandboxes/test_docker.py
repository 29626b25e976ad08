"""The Docker backend keeps the contract, over a real daemon."""

from __future__ import annotations

import pytest

from vime_agents.sandbox import SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS
from vime_sandboxes.docker import DockerSandboxProvider

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("check", CHECKS)
async def test_docker_keeps_its_promise(
    docker_provider: DockerSandboxProvider, python_spec: SandboxSpec, check: str
) -> None:
    await CHECKS[check](docker_provider, python_spec)
