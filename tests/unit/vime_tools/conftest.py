"""A sandbox for tools."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.vime_tools.hosts import Host
from vime_agents.sandbox import SandboxSpec
from vime_sandboxes.local import LocalSandboxProvider


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    provider = LocalSandboxProvider()
    yield Host(await provider.create(SandboxSpec(memory_mb=256)))
    await provider.aclose()
