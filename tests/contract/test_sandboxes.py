"""Every registered sandbox backend keeps every promise."""

from __future__ import annotations

import pytest

from vime_agents import registry
from vime_agents.sandbox import Sandbox, SandboxProvider, SandboxSpec
from vime_agents.testing.check_sandbox import CHECKS

NEED_A_SERVICE = {"docker", "e2b"}
"""Their suites start it: `tests/integration/sandboxes`."""
BACKENDS = sorted(registry.entry_points(registry.SANDBOXES_GROUP).keys() - NEED_A_SERVICE)
NOT_PROMISED = {
    "unsafe": {
        "host_secrets_are_unreadable",
        "no_network_means_none",
        "commands_have_no_privileges",
        "sandboxes_share_nothing",
        "users_are_as_asked_or_refused",
    }
}
"""Backends without walls, and the checks of walls."""
CASES = [(b, c) for b in BACKENDS for c in CHECKS if c not in NOT_PROMISED.get(b, ())]
pytestmark = pytest.mark.filterwarnings("ignore:SandboxSpec.backend='unsafe' is NOT:RuntimeWarning")


@pytest.fixture
async def provider(backend: str):
    made = registry.sandbox_provider(backend)
    yield made
    await made.aclose()


@pytest.mark.parametrize(("backend", "check"), CASES)
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
