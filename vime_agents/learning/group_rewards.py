"""Episodes -> the same episodes, with what a comparison within each group adds to their rewards."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

from vime_agents.episode import Episode, RewardResult, Trajectory
from vime_agents.errors import GraderError
from vime_agents.reward import GroupReward, in_range, with_component


async def add_group_rewards(episodes: Sequence[Episode], rewards: Sequence[GroupReward]) -> list[Episode]:
    """The episodes, in their order, with what a comparison within each `group_id` adds to their rewards.

    Episodes without a trusted reward are neither compared nor changed. Where a comparison fails, or gives
    another number of values than it was given episodes, the group's rewards have the status `error`.
    """
    found = list(episodes)
    groups: dict[str, list[int]] = {}
    for place, episode in enumerate(found):
        groups.setdefault(episode.group_id, []).append(place)
    for component in rewards:
        done = await asyncio.gather(
            *(_compare(component, [found[place] for place in places]) for places in groups.values())
        )
        for places, changed in zip(groups.values(), done, strict=True):
            for place, episode in zip(places, changed, strict=True):
                found[place] = episode
    return found


class GroupRewarder:
    """Holds episodes back until their group is whole, then adds what the comparison says.

    Without comparisons every episode passes at once. A group that never gets whole never comes out: its
    episodes have no reward that could be trusted.
    """

    def __init__(self, rewards: Sequence[GroupReward], group_size: int) -> None:
        self._rewards, self._group_size = tuple(rewards), group_size
        self._waiting: dict[str, list[Episode]] = {}

    async def add(self, episode: Episode) -> list[Episode]:
        """The episodes whose rewards are final now."""
        if not self._rewards:
            return [episode]
        group = self._waiting.setdefault(episode.group_id, [])
        group.append(episode)
        if len(group) < self._group_size:
            return []
        return await add_group_rewards(self._waiting.pop(episode.group_id), self._rewards)


async def _compare(component: GroupReward, episodes: Sequence[Episode]) -> list[Episode]:
    compared = [e for e in episodes if _is_compared(e, component.agent)]
    if not compared:
        return list(episodes)
    try:
        values = await _group_values(component, compared)
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs one group its rewards and no more
        detail = f"group reward {component.name}: {type(error).__name__}: {error}"[:2000]
        failed = RewardResult(value=None, status="error", detail=detail)
        return [_rewarded(e, component.agent, lambda _: failed) if e in compared else e for e in episodes]
    by_id = dict(zip((e.id for e in compared), values, strict=True))

    def add(episode: Episode) -> Episode:
        value = by_id[episode.id]
        return _rewarded(
            episode, component.agent, lambda r: with_component(r, component.name, value, component.weight)
        )

    return [add(e) if e.id in by_id else e for e in episodes]


async def _group_values(component: GroupReward, episodes: Sequence[Episode]) -> list[float]:
    if inspect.iscoroutinefunction(component.function):
        values = await component.function(episodes)
    else:
        values = await asyncio.to_thread(component.function, episodes)
        values = await values if inspect.isawaitable(values) else values
    values = list(values)
    if len(values) != len(episodes):
        raise GraderError(f"{len(values)} values for {len(episodes)} episodes")
    for episode in episodes:
        if component.name in _trajectory(episode, component.agent).reward.components:
            raise GraderError(f"two components have the name {component.name!r}")
    return [in_range(value, component.name, component.range) for value in values]


def _is_compared(episode: Episode, agent: str) -> bool:
    mine = [t for t in episode.trajectories if t.agent == agent]
    return episode.outcome.kind != "failed" and bool(mine) and mine[0].reward.ok


def _trajectory(episode: Episode, agent: str) -> Trajectory:
    return next(t for t in episode.trajectories if t.agent == agent)


def _rewarded(episode: Episode, agent: str, change: Callable[[RewardResult], RewardResult]) -> Episode:
    changed = tuple(
        replace(t, reward=change(t.reward)) if t.agent == agent else t for t in episode.trajectories
    )
    return replace(episode, trajectories=changed)
