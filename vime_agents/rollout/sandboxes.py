"""The sandboxes that all episodes of a process take theirs from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    env_id: str, *, size: int, max_sandboxes: int | None = None, share: float = 1.0, run: str = ""
) -> SandboxPool | None:
    """A pool for the episodes of an env, which makes nothing yet; close it with `aclose`.

    None: the env has no sandboxes.

    Args:
        env_id: as `registry.env_class` takes it.
        size: sandboxes to keep ready; 0: each is made when it is asked for.
        max_sandboxes: open at once; None: as many as there is room for.
        share: of this host's room, when several processes play on it.
        run: name of the run, for the sandboxes' labels.
    """
    if getattr(registry.env_class(env_id), "sandbox_spec", None) is None:
        return None
    return registry.sandbox_pool(size=size, max_sandboxes=max_sandboxes, share=share, run=run)


def merged_metrics(pools: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several pools as of one: counts are added, of durations and shares the worst is kept."""
    merged: dict[str, float] = {}
    for metrics in pools:
        for name, value in metrics.items():
            if name not in merged:
                merged[name] = value
            elif name.endswith("_s"):
                merged[name] = max(merged[name], value)
            elif name.endswith("_share"):
                merged[name] = min(merged[name], value)
            else:
                merged[name] += value
    return merged
