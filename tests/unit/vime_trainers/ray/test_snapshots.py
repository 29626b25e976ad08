"""Earlier states of the policy as opponents: which are kept, who plays, what a checkpoint says."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from vime_agents.config.train import TrainConfig
from vime_agents.errors import CheckpointError, WeightSyncError
from vime_trainers.ray.cluster import Needs
from vime_trainers.ray.processes import snapshot_engine_config
from vime_trainers.ray.run_state import load_run_state, save_run_state
from vime_trainers.ray.snapshots import STATE, SnapshotPlayers, Snapshots
from vime_trainers.sync.weight_file import layout_of
from vime_trainers.sync.weight_shards import write_weight_shards


def snapshots(folder: Path = Path(), *, seed: int = 0, most: int = 3) -> Snapshots:
    return Snapshots(folder, interval=10, most=most, seed=seed)


def after(update: int, **settings: Any) -> Snapshots:
    """Those of a run that has done so many updates."""
    found = snapshots(**settings)
    for n in filter(found.due, range(update + 1)):
        found.add(n, [math.nan, -float(n)])
    return found


# ------------------------------------------------------------------------------------ which, and who plays


def test_the_oldest_is_dropped_but_for_the_weights_as_they_came() -> None:
    assert [*after(9).probes] == [0]
    assert [*after(25).probes] == [0, 10, 20]
    assert [*after(59).probes] == [0, 30, 40, 50]
    assert [*after(59, most=1).probes] == [0, 50]


def test_the_draw_is_a_pure_function_of_seed_and_rollout_among_the_newest() -> None:
    drawn = [after(59).drawn(rollout) for rollout in range(3000)]
    assert drawn == [after(59).drawn(rollout) for rollout in range(3000)]
    counts = Counter(drawn)
    assert sorted(counts) == [30, 40, 50]
    assert all(abs(n - 1000) < 130 for n in counts.values())  # five standard deviations
    assert drawn != [after(59, seed=1).drawn(rollout) for rollout in range(3000)]
    assert {after(0).drawn(rollout) for rollout in range(20)} == {0}


# --------------------------------------------------------------------------------------------- checkpoints


def test_a_resumed_run_has_the_snapshots_that_were_saved(tmp_path: Path) -> None:
    saved, loaded = after(59), snapshots()
    save_run_state(tmp_path, {STATE: saved})
    load_run_state(tmp_path, {STATE: loaded})
    assert loaded.probes == saved.probes
    assert [loaded.drawn(n) for n in range(100)] == [saved.drawn(n) for n in range(100)]
    assert loaded.logprobs(40)[1:] == [-40.0]
    assert math.isnan(loaded.logprobs(40)[0])


@pytest.mark.parametrize("state", [[1], {"ten": [0.0]}, {"10": ["x"]}, {"10": 3}])
def test_a_broken_list_is_named(tmp_path: Path, state: Any) -> None:
    (tmp_path / "run_state.json").write_text(json.dumps({STATE: state}))
    with pytest.raises(CheckpointError, match=r"state of the snapshots|run_state\.json"):
        load_run_state(tmp_path, {STATE: snapshots()})


def test_what_a_checkpoint_lists_stays_and_all_else_goes(tmp_path: Path) -> None:
    folder, checkpoints = tmp_path / "snapshots", tmp_path / "checkpoints"
    names = [f"update-{n:06d}" for n in (0, 10, 20, 30, 40, 50, 60, 70)]
    for name in (*names, ".update-000080.partial"):
        (folder / name).mkdir(parents=True)
    for name, update in (("update-000035", 35), (".update-000047.start-1.unfinished", 47)):
        (checkpoints / name).mkdir(parents=True)
        save_run_state(checkpoints / name, {STATE: after(update, most=2)})
    after(59, folder=folder, most=1).prune(checkpoints)
    # Those of 35: 20, 30; of 47, which is being written: 30, 40; and what the run itself has.
    assert sorted(p.name for p in folder.iterdir()) == [f"update-{n:06d}" for n in (0, 20, 30, 40, 50)]


# ---------------------------------------------------------------------------------- written, read, and played


class Trainer:
    """Exports one tensor, which says after which update."""

    def export_folder(self, folder: Path, dtype: str, *, version: int, shard_size: int) -> int:
        weights = {"w": torch.full((2,), float(version), dtype=getattr(torch, dtype))}
        return write_weight_shards(
            folder, layout_of(weights), weights.items(), version=version, shard_size=shard_size
        )


@dataclass
class Publisher:
    """Notes what it is given; refuses the version `refused`."""

    refused: int = -1
    published: list[tuple[str, int, list[float]]] = field(default_factory=list)

    async def publish(self, info: dict[str, str], version: int, *, trainer_logprobs: list[float]) -> None:
        assert info["version"] == str(version)
        if version == self.refused:
            raise WeightSyncError("tensor w is damaged")
        self.published.append((Path(info["path"]).parent.name, version, trainer_logprobs[1:]))


class Player:
    """Notes the name of its opponent, as a Ray actor would be told it."""

    def __init__(self) -> None:
        self.named: list[int] = []

    @property
    def name_snapshot(self) -> Any:
        return self

    async def remote(self, update: int) -> None:
        self.named.append(update)


class Processes:
    """Those of a run, without a process."""

    def __init__(self) -> None:
        self.trainer, self.snapshot_publisher, self.players = Trainer(), Publisher(), [Player(), Player()]
        self.waited = 0

    async def await_death(self) -> None:
        self.waited += 1


@pytest.fixture
def players(tmp_path: Path) -> SnapshotPlayers:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    config = TrainConfig(
        env="TicTacToe-v0",
        agents="O=snapshots",
        hf_checkpoint=str(source),
        run_dir=str(tmp_path / "run"),
        snapshot_interval=2,
        num_snapshots=1,
    )
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return SnapshotPlayers(config, tmp_path / "run", Processes(), "float32")  # type: ignore[arg-type]


async def test_a_snapshot_is_written_published_once_and_named_to_every_player(
    players: SnapshotPlayers,
) -> None:
    processes: Any = players.processes
    for update in (0, 2, 4):
        await players.take(update, [math.nan, -0.5, -1.0 * update])
    assert sorted(p.name for p in players.snapshots.folder.iterdir()) == ["update-000000", "update-000004"]
    for update in (4, 4, 0, 4):
        await players.play(update)
    told = [(f"update-{n:06d}", n, [-0.5, -1.0 * n]) for n in (4, 0, 4)]
    assert processes.snapshot_publisher.published == told
    assert [p.named for p in processes.players] == [[4, 0, 4], [4, 0, 4]]
    await players.resume()  # all of them can be read


async def test_a_snapshot_that_an_engine_refuses_is_named_with_its_file(players: SnapshotPlayers) -> None:
    processes: Any = players.processes
    processes.snapshot_publisher.refused = 2
    for update in (0, 2):
        await players.take(update, [math.nan, -1.0])
    await players.play(0)
    with pytest.raises(WeightSyncError, match=r"update 2 cannot play: tensor w is damaged.*update-000002"):
        await players.play(2)
    assert processes.waited == 1
    processes.snapshot_publisher.refused = -1
    await players.play(0)  # whatever the engine holds after a refusal, it is not trusted
    assert [version for _, version, _ in processes.snapshot_publisher.published] == [0, 0]


@pytest.mark.parametrize("damage", ["missing", "torn", "another"])
async def test_a_run_does_not_resume_without_its_snapshots(players: SnapshotPlayers, damage: str) -> None:
    for update in (0, 2):
        await players.take(update, [math.nan, -1.0])
    file = players.snapshots.weights(2)
    if damage == "missing":
        file.unlink()
    elif damage == "torn":
        file.write_bytes(file.read_bytes()[:-3])
    else:
        file.write_bytes(players.snapshots.weights(0).read_bytes())
    with pytest.raises(CheckpointError, match=r"snapshot of update 2.*put .*update-000002.* back"):
        await players.resume()


# ------------------------------------------------------------------------------------------------- engines


def test_their_engines_take_files_and_have_accelerators_of_their_own() -> None:
    config = TrainConfig(
        env="TicTacToe-v0",
        hf_checkpoint="m",
        run_dir="r",
        agents="O=random|snapshots",
        rollout_num_gpus_per_engine=4,
        snapshot_num_gpus_per_engine=2,
        update_weight_transport="gloo",
    )
    engine = snapshot_engine_config(config, log_path=Path("log"))
    assert engine.weight_transfer == "file"
    assert engine.extra_args == ("--tensor-parallel-size", "2")
    needs = Needs(
        num_trainer_ranks=3,
        num_engines=config.num_policy_engines,
        num_gpus_per_engine=config.rollout_num_gpus_per_engine,
        num_snapshot_engines=config.num_snapshot_engines,
        num_gpus_per_snapshot_engine=config.snapshot_gpus_per_engine,
    )
    assert (needs.num_cpus(), needs.num_gpus()) == (3 + 1 + 1 + 1, 3 + 4 + 2)
    alone = TrainConfig(env="TicTacToe-v0", hf_checkpoint="m", run_dir="r", agents="O=random")
    assert (alone.num_snapshot_engines, alone.num_policy_engines) == (0, 1)
