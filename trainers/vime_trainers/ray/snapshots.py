"""Snapshots: earlier states of the policy that is trained, which it plays against.

snapshots/update-000010/    a Hugging Face folder of the weights after update 10
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from vime_agents.config.train import TrainConfig
from vime_agents.errors import CheckpointError, WeightSyncError
from vime_trainers.ray.hf_export import save_hf_folder
from vime_trainers.ray.processes import Processes
from vime_trainers.ray.run_state import FILE
from vime_trainers.ray.trainer_group import Dtype
from vime_trainers.sync.weight_file import check_version

STATE = "snapshots"
"""Name of the list of snapshots in a checkpoint."""


class Snapshots:
    """Which snapshots a run has, and which of them plays a rollout.

    Guarantees: both are pure functions of the settings, the seed and the number of the update or rollout. In
    the draw are the newest `most`; the initial weights (update 0) are kept beyond that, for evaluations.
    """

    def __init__(self, folder: Path, *, interval: int, most: int, seed: int) -> None:
        """`folder`: of the snapshots, which this process, rank 0 and the engines see."""
        self.folder, self.interval, self.most, self.seed = folder, interval, most, seed
        self.probes: dict[int, list[float]] = {}
        """Update -> the trainer's log-probs of the probe's tokens from the second on: what proves that an
        engine holds the snapshot."""

    def due(self, update: int) -> bool:
        """Whether the weights after `update` updates are a snapshot."""
        return update % self.interval == 0

    def add(self, update: int, logprobs: Sequence[float]) -> None:
        """Take up a snapshot that is newer than the others, and drop the oldest one beyond `most`.

        `logprobs`: the trainer's, of all tokens of the probe.
        """
        self.probes[update] = list(logprobs[1:])
        for old in sorted(self.probes)[: -self.most]:
            if old:
                del self.probes[old]

    def drawn(self, rollout: int) -> int:
        """The update whose snapshot plays a rollout; all that are there are equally likely."""
        newest = sorted(self.probes)[-self.most :]
        return random.Random(f"{self.seed}/snapshots/{rollout}").choice(newest)

    def path(self, update: int) -> Path:
        """Folder of a snapshot."""
        return self.folder / f"update-{update:06d}"

    def weights(self, update: int) -> Path:
        """Its weights, all in one file."""
        return self.path(update) / "model.safetensors"

    def logprobs(self, update: int) -> list[float]:
        """Its log-probs of all tokens of the probe; nothing predicts the first."""
        return [float("nan"), *self.probes[update]]

    def check(self) -> None:
        """Raises CheckpointError: a snapshot is not there, or its file is torn or of another update."""
        for update in self.probes:
            try:
                check_version(self.weights(update), str(update))
            except (OSError, ValueError, SafetensorError) as error:
                raise CheckpointError(
                    f"the snapshot of update {update}, an opponent of this run, cannot be read: {error}; put "
                    f"{self.weights(update)} back as it was, or begin another run"
                ) from error

    def prune(self, checkpoints: Path) -> None:
        """Remove what neither the run nor a checkpoint in that folder lists: each can be gone on with."""
        listed = set(self.probes)
        for state in checkpoints.glob(f"*/{FILE}"):  # hidden ones too: those are being written
            try:
                listed |= {int(update) for update in json.loads(state.read_text())[STATE]}
            except FileNotFoundError:
                continue  # pruned at this moment
        needed = {self.path(update).name for update in listed}
        for folder in self.folder.iterdir():
            if folder.name not in needed:
                # Renamed first: a snapshot that is half removed must not look whole.
                doomed = folder.rename(folder.with_name(f".{folder.name.lstrip('.')}.removed"))
                shutil.rmtree(doomed)

    def state_dict(self) -> dict[str, Any]:
        """Update -> log-probs of the probe."""
        return {str(update): logprobs for update, logprobs in self.probes.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with those snapshots. Raises CheckpointError: they are no such list."""
        try:
            self.probes = {int(u): [float(x) for x in logprobs] for u, logprobs in state.items()}
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the state of the snapshots is broken: {error}") from error


class SnapshotPlayers:
    """Makes the snapshots of a run, and lets them play from engines that the trainer never updates."""

    def __init__(self, config: TrainConfig, run_dir: Path, processes: Processes, dtype: Dtype) -> None:
        """`dtype`: of the weights, on the disk and in the engines."""
        self.config, self.run_dir, self.processes = config, run_dir, processes
        self.dtype: Dtype = dtype
        self.snapshots = Snapshots(
            run_dir.resolve() / "snapshots",
            interval=config.snapshot_interval,
            most=config.num_snapshots,
            seed=config.seed,
        )
        self._playing: int | None = None

    async def resume(self) -> None:
        """Go on with the snapshots of a checkpoint. Raises CheckpointError: one of them cannot be read."""
        await asyncio.to_thread(self.snapshots.check)
        await self._prune()

    async def take(self, update: int, logprobs: Sequence[float]) -> None:
        """Keep the trainer's weights after `update` updates.

        `logprobs`: the trainer's, of the probe's tokens.

        Raises:
            CheckpointError: they cannot be written.
        """
        await asyncio.to_thread(
            save_hf_folder,
            self.processes.trainer,
            Path(self.config.hf_checkpoint).expanduser(),  # noqa: ASYNC240
            self.snapshots.path(update),
            run_dir=self.run_dir,
            update=update,
            dtype=self.dtype,
            shard_size=sys.maxsize,
            flag="--run-dir",
        )
        self.snapshots.add(update, logprobs)
        await self._prune()

    async def play(self, update: int) -> None:
        """Let the snapshot of `update` play from now on, and prove that its engines hold it.

        Raises:
            WeightSyncError: an engine does not take it, or does not give its log-probs.
        """
        if update == self._playing:
            return
        self._playing = None
        path = self.snapshots.weights(update)
        try:
            await self.processes.snapshot_publisher.publish(
                {"path": str(path), "version": str(update)},
                update,
                trainer_logprobs=self.snapshots.logprobs(update),
            )
        except WeightSyncError as error:
            await self.processes.await_death()  # a dead engine is the better explanation
            raise WeightSyncError(
                f"the snapshot of update {update} cannot play: {error}. If {path} is damaged, put it back as "
                "it was, or begin another run"
            ) from error
        await asyncio.gather(*(p.name_snapshot.remote(update) for p in self.processes.players))
        self._playing = update

    async def _prune(self) -> None:
        await asyncio.to_thread(self.snapshots.prune, self.run_dir / "checkpoints")
