"""A whole run in one process, but for the engines: `run_worker.py <output> <stuck update> <flags of a run>`.

Who plays is this file: each reply is the likelier of two by the trainer's own weights. Writes what training
came to into <output>. The writer of the checkpoint of <stuck update> never gets beyond the first byte.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


class OneProcess:
    """A trainer that takes one call at a time, as a group of ranks does."""

    def __init__(self, trainer: Any, stuck: int) -> None:
        self.trainer, self.stuck, self.lock = trainer, stuck, threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                return getattr(self.trainer, name)(*args, **kwargs)

        return call

    def begin_save(self, folder: Path) -> None:
        if folder.name.startswith(f".update-{self.stuck:06d}."):
            from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

            FileSystemWriterAsync.write_preloaded_data = staticmethod(write_for_ever)
        with self.lock:
            self.trainer.begin_save(folder)

    def export(self, path: Path, dtype: str, *, version: int) -> Any:
        return SimpleNamespace(path=path, seconds=0.0)


def write_for_ever(*_: Any, write_bucket: Any, **__: Any) -> None:
    with open(write_bucket[0], "wb", buffering=0) as file:
        file.write(b"P")
        time.sleep(3600)


class Publisher:
    """Engines that take every weight at once."""

    async def publish(self, info: Any, update: int, **_: Any) -> Any:
        from vime_trainers.sync.publisher import SyncReport

        return SyncReport(version=update, num_engines=1, num_bytes=0, seconds={}, max_probe_logprob_diff=0.0)

    async def probe(self, logprobs: list[float]) -> float:
        return 0.0


class Players:
    """Stands for the engines and who plays on them."""

    def __init__(self, trainer: OneProcess, weights_dir: Path) -> None:
        self.trainer, self.weights_dir = trainer, weights_dir
        self.publisher, self.probe = Publisher(), (1, 2, 3)

    async def play(self, requests: Sequence[Any], *, on_episode: Callable[[Any], None], **_: Any) -> None:
        from tests.unit.vime_agents.episodes import make_episode
        from vime_agents.token_log import Piece, SampledTokens, TokenLog

        for request in requests:
            rng = np.random.default_rng(request.seed)
            rows = rng.integers(0, 100, (2, 8), dtype=np.int32)
            rows[1, :2] = rows[0, :2]
            scored = self.trainer.logprobs(list(rows), temperature=1.0)
            best = int(scored[1][2:].sum() > scored[0][2:].sum())
            version = self.trainer.trainer.version // 2
            log = TokenLog()
            log.extend([Piece(token_ids=tuple(rows[0, :2].tolist()), source="user")], turn=0)
            ids, found = rows[best, 2:].tolist(), scored[best][2:].tolist()
            sampled = SampledTokens(token_ids=tuple(ids), logprobs=tuple(found), versions=((version, 0, 6),))
            log.append_sampled(sampled, turn=0)
            reward = sum(token < 50 for token in ids) / 6
            on_episode(make_episode(request.episode_id, request.group_id, reward, log=log))

    async def sandbox_metrics(self) -> dict[str, float]:
        return {}


def main() -> None:
    import torch

    from vime_agents.config.train import TrainConfig
    from vime_agents.storage.run_directory import RunDirectory
    from vime_trainers.megatron.trainer import MegatronTrainer
    from vime_trainers.ray.processes import megatron_config
    from vime_trainers.ray.progress import TrainProgress
    from vime_trainers.ray.schedule import training_tasks
    from vime_trainers.ray.train_loop import _Loop

    output, stuck = Path(sys.argv[1]), int(sys.argv[2])
    config = TrainConfig.from_argv(sys.argv[3:])
    trainer = MegatronTrainer(megatron_config(config))
    alone = OneProcess(trainer, stuck)
    with RunDirectory.create_or_resume(config.run_dir, config) as run, TrainProgress(config, run) as progress:
        processes: Any = Players(alone, output.parent)
        loop = _Loop(config, run, progress, processes, training_tasks(config), [])
        asyncio.run(loop.complete(startup_s=0.0))
    found: dict[str, Any] = {f"weights.{n}": w.clone() for n, w in trainer.weights()}
    for place, adam in enumerate(trainer.optimizer.chained_optimizers):
        for index, state in enumerate(adam.optimizer.state.values()):
            found |= {f"optimizer.{place}.{index}.{name}": value for name, value in state.items()}
    torch.save(found, output)
    trainer.close()


if __name__ == "__main__":
    main()
