"""No registered sandbox backend with walls lets an attack through."""

from __future__ import annotations

import pytest

from vime_agents import registry
from vime_agents.errors import ContractError
from vime_agents.sandbox import SandboxProvider, SandboxSpec
from vime_agents.testing.sandbox_attacks import ATTACKS, run_attack

ELSEWHERE = {"docker", "e2b", "unsafe"}
"""Two need a service, which `tests/integration/sandboxes` starts; one has no walls, and says so."""
BACKENDS = sorted(registry.entry_points(registry.SANDBOXES_GROUP).keys() - ELSEWHERE)


@pytest.fixture
async def provider(backend: str):
    made = registry.sandbox_provider(backend)
    yield made
    await made.aclose()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_attack_does_not_get_through(provider: SandboxProvider, backend: str, attack: str) -> None:
    await run_attack(attack, provider, SandboxSpec(backend=backend, memory_mb=256))


def test_every_attack_says_what_must_come_of_it() -> None:
    assert len(ATTACKS) >= 17
    assert all(attack.run.__doc__ for attack in ATTACKS.values())


@pytest.mark.filterwarnings("ignore:SandboxSpec.backend='unsafe' is NOT:RuntimeWarning")
@pytest.mark.parametrize("backend", ["unsafe"])
@pytest.mark.parametrize("attack", ["read_host_secrets", "look_at_the_processes_of_others", "send_data_out"])
async def test_attacks_are_seen_to_get_through_where_there_are_no_walls(
    provider: SandboxProvider, backend: str, attack: str
) -> None:
    with pytest.raises(ContractError):
        await run_attack(attack, provider, SandboxSpec(backend=backend))
