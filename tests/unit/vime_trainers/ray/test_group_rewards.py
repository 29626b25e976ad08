"""A rollout's episodes are compared with their siblings before they are stored and learned from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.config.train import TrainConfig
from vime_agents.episode import Episode
from vime_agents.reward import GroupReward
from vime_envs.key_lookup import KeyLookup
from vime_trainers.ray.schedule import training_tasks
from vime_trainers.ray.train_loop import _Loop


class Run:
    """Stands for the run directory: keeps what is written."""

    def __init__(self) -> None:
        self.stored: list[Episode] = []

    @contextlib.contextmanager
    def rollout_episodes(self, _rollout: int):
        yield self

    def append(self, episode: Episode) -> None:
        self.stored.append(episode)


class Processes:
    """Stands for the players: every request becomes an episode with the reward 0.25."""

    trainer = None

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stored_while_playing: list[int] = []

    async def play(self, requests: Sequence[Any], *, on_episode: Callable[[Episode], None], **_: Any) -> None:
        for request in requests:
            on_episode(make_episode(request.episode_id, request.group_id, 0.25))
            self.stored_while_playing.append(len(self.run.stored))

    async def check_engines(self) -> None:
        pass


class Progress:
    def episode(self, *_: Any) -> None:
        pass


def first_of_two(episodes: Sequence[Episode]) -> list[float]:
    assert len(episodes) == 2
    return [float(e.id == min(other.id for other in episodes)) for e in episodes]


async def collected() -> tuple[list[Episode], Run, Processes]:
    config = TrainConfig(
        env="KeyLookup-v0", hf_checkpoint="m", run_dir="r", rollout_batch_size=3, n_samples_per_prompt=2
    )
    run = Run()
    processes: Any = Processes(run)
    fakes: Any = (run, Progress(), processes)
    loop = _Loop(config, *fakes, training_tasks(config), [])
    return await loop.collect(0), run, processes


async def test_siblings_are_compared_before_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    component = GroupReward(function=first_of_two, name="first", weight=0.5)
    monkeypatch.setattr(KeyLookup, "group_rewards", (component,))
    episodes, run, _ = await collected()
    assert [e.reward for e in episodes] == [0.75, 0.25] * 3
    assert run.stored == episodes


async def test_without_comparisons_an_episode_is_stored_as_soon_as_it_is_finished() -> None:
    episodes, run, processes = await collected()
    assert [e.reward for e in episodes] == [0.25] * 6
    assert run.stored == episodes
    assert processes.stored_while_playing == [1, 2, 3, 4, 5, 6]
