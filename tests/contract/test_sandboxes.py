"""Every registered sandbox backend keeps every promise."""

from __future__ import annotations

import pytest

from vime_agents import registry
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS

NEED_A_SERVICE = {"docker", "e2b"}
"""Their suites start it: `tests/integration/sandboxes`."""
BACKENDS = sorted(registry.entry_points(registry.SANDBOXES_GROUP).keys() - NEED_A_SERVICE)


@pytest.fixture
async def provider(backend: str):
    made = registry.sandbox_provider(backend)
    yield made
    await made.aclose()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", CHECKS)
async def test_backend_keeps_its_promise(provider: SandboxProvider, backend: str, check: str) -> None:
    await CHECKS[check](provider, SandboxSpec(backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
async def test_objects_have_the_shape_of_the_protocols(provider: SandboxProvider, backend: str) -> None:
    assert isinstance(provider, SandboxProvider)
    assert provider.name == backend
    sandbox = await provider.create(SandboxSpec(backend=backend), labels={"episode": "e1"})
    assert isinstance(sandbox, Sandbox)
    assert sandbox.spec == SandboxSpec(backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_closing_the_provider_closes_its_sandboxes(provider: SandboxProvider, backend: str) -> None:
    sandboxes = [await provider.create(SandboxSpec(backend=backend)) for _ in range(3)]
    await provider.aclose()
    assert [await s.alive() for s in sandboxes] == [False] * 3
