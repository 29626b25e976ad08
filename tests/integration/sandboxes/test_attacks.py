"""No attack gets through Docker, or through E2B's protocol to a local sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from vime_agents.sandbox import SandboxSpec
from vime_agents.testing.sandbox_attacks import ATTACKS, run_attack
from vime_sandboxes.docker import DockerSandboxProvider
from vime_sandboxes.e2b import E2BSandboxProvider
from vime_sandboxes.e2b_server.app import create_app
from vime_sandboxes.e2b_server.serve import serving
from vime_sandboxes.local import LocalSandboxProvider

pytestmark = pytest.mark.integration
KEY = "e2b_test"
TEMPLATE = SandboxSpec(memory_mb=512, max_processes=256)


@pytest.fixture
async def e2b_provider() -> AsyncIterator[E2BSandboxProvider]:
    local = LocalSandboxProvider()
    async with serving(create_app(local, api_key=KEY, templates={"base": TEMPLATE})) as url:
        made = E2BSandboxProvider(api_key=KEY, api_url=url, sandbox_url=url)
        yield made
        await made.aclose()
    await local.aclose()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_docker(docker_provider: DockerSandboxProvider, python_spec: SandboxSpec, attack: str) -> None:
    await run_attack(attack, docker_provider, python_spec)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_e2b(e2b_provider: E2BSandboxProvider, attack: str) -> None:
    await run_attack(attack, e2b_provider, SandboxSpec(backend="e2b", memory_mb=256))
