"""Owners that are killed at random moments leave nothing: the benchmark's own measure, on a small scale."""

from __future__ import annotations

import pytest

from benchmarks.sandbox_arms import leaks
from vime_agents.sandbox import SandboxSpec

pytestmark = pytest.mark.integration


def test_local() -> None:
    found = leaks.measure(SandboxSpec(memory_mb=64), 24, seed=3)
    assert found["cycles"] >= 24
    assert found["owners_killed"] >= 4
    assert {key: value for key, value in found.items() if key.startswith("left_") and value} == {}
    assert found["reaper_failed"] == 0
