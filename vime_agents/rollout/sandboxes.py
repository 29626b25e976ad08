"""The sandboxes that all episodes of a process take theirs from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vime_agents import registry
from vime_agents.sandbox import SandboxProvider


class SandboxPoolStats(Protocol):
    """What a pool did so far."""

    def metrics(self) -> Mapping[str, float]:
        """By the names that reports have: `sandbox_boots`, `sandbox_wait_p95_s`, ..."""
        ...


class SandboxPool(SandboxProvider, Protocol):
    """A provider that has sandboxes ready, and no more open than there is room for."""

    async def stats(self) -> SandboxPoolStats:
        """What it did so far."""
        ...


def sandbox_pool(
    env_id: str, *, size: int, max_sandboxes: int | None = None, run: str = ""
) -> SandboxPool | None:
    """A pool for the episodes of an env, which makes nothing yet; close it with `aclose`.

    None: the env has no sandboxes, or no pool is wanted (no size, no maximum).

    Args:
        env_id: as `registry.env_class` takes it.
        size: sandboxes to keep ready.
        max_sandboxes: open at once; None: as many as this host has room for.
        run: name of the run, for the sandboxes' labels.
    """
    if getattr(registry.env_class(env_id), "sandbox_spec", None) is None:
        return None
    if size == 0 and max_sandboxes is None:
        return None
    return registry.sandbox_pool(size=size, max_sandboxes=max_sandboxes, run=run)
