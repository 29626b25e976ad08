"""One rank of the tests of saves: `saves_worker.py <model> <experts' model> <output> <layouts>`.

Rank 0 writes `<layout>.pt`. The process group is in the environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import torch
    import torch.distributed as dist

    from vime_trainers.megatron.device import init_process_group

    init_process_group()
    model, experts, output = (Path(argument) for argument in sys.argv[1:4])
    for name, layout in json.loads(sys.argv[4]).items():
        found = saves(model, layout, output) | {"experts": of_experts(experts, output)}
        if dist.get_rank() == 0:
            torch.save(found, output / f"{name}.pt")
    dist.destroy_process_group()


def saves(model: Path, layout: dict[str, Any], output: Path) -> dict[str, Any]:
    """What follows each of two checkpoints of one moment: written at once, and while updates followed."""
    from tests.integration.megatron import critic_oracle, oracle
    from tests.integration.megatron.worker import raised
    from vime_agents.errors import CheckpointError, ContractError
    from vime_trainers.megatron.config import CriticConfig, MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    config = MegatronConfig(
        hf_checkpoint=str(model), lr=1e-2, max_tokens_per_gpu=64, critic=CriticConfig(lr=1e-2), **layout
    )
    trainer = MegatronTrainer(config)
    batch, of_critic = oracle.make_batch(9), critic_oracle.make_batch()

    def go_on() -> list[Any]:
        metrics = [{**trainer.update_critic(of_critic), **trainer.update(batch)} for _ in range(2)]
        return [metrics, {n: w.clone() for n, w in trainer.weights()}, trainer.version]

    go_on()
    trainer.save(folder_of(output, "at once"))
    background = folder_of(output, "in the background")
    trainer.begin_save(background)
    found: dict[str, Any] = {"went on": go_on()}
    unfinished = folder_of(output, "unfinished")
    found["two"] = raised(ContractError, lambda: trainer.begin_save(unfinished))
    found["whole too early"] = (background / "metadata.json").exists()
    found["finished"] = trainer.finish_saves(wait=True), trainer.finish_saves(wait=False)
    for name in ("at once", "in the background"):
        trainer.load(output / name)
        found[name] = go_on()

    before = trainer.version
    broken = folder_of(output, "broken")
    with full_disk():
        trainer.begin_save(broken)
        trainer.update(batch)
        found["broken"] = raised(CheckpointError, lambda: trainer.finish_saves(wait=True))
        found["broken at once"] = raised(CheckpointError, lambda: trainer.save(folder_of(output, "at-once")))
    found["broken is whole"] = (broken / "metadata.json").exists()
    trainer.begin_save(unfinished)
    trainer.finish_saves(wait=True)
    trainer.load(unfinished)
    found["versions"] = before, trainer.version
    trainer.close()
    return found


def of_experts(model: Path, output: Path) -> dict[str, Any]:
    """A checkpoint of shared experts, read in the same layout and in one with a stage that has none."""
    import torch

    from tests.integration.megatron import oracle
    from tests.integration.megatron.worker import raised
    from vime_agents.errors import CheckpointError
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    settings: dict[str, Any] = {"hf_checkpoint": str(model), "lr": 1e-2, "max_tokens_per_gpu": 64}
    trainer = MegatronTrainer(MegatronConfig(expert_model_parallel_size=2, **settings))
    trainer.update(oracle.make_batch(9))
    folder = folder_of(output, "experts")
    trainer.save(folder)
    saved = {n: w.clone() for n, w in trainer.weights()}
    trainer.update(oracle.make_batch(9))
    trainer.load(folder)
    found: dict[str, Any] = {"same": all(torch.equal(saved[n], w) for n, w in trainer.weights())}
    trainer.close()
    trainer = MegatronTrainer(MegatronConfig(pipeline_model_parallel_size=2, **settings))
    found["other"] = raised(CheckpointError, lambda: trainer.load(folder))
    trainer.close()
    return found


def folder_of(output: Path, name: str) -> Path:
    """A new empty folder."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        (output / name).mkdir()
    dist.barrier()
    return output / name


class full_disk:
    """Inside, the last rank's writers have no room; the others have."""

    def __enter__(self) -> None:
        import torch.distributed as dist
        from megatron.core.dist_checkpointing.strategies import filesystem_async

        self.module: Any = filesystem_async
        if dist.get_rank() == dist.get_world_size() - 1:
            self.module.open = self.open

    def __exit__(self, *error: object) -> None:
        self.module.__dict__.pop("open", None)

    @staticmethod
    def open(path: str, mode: str) -> Any:
        raise OSError(28, os.strerror(28), path)


if __name__ == "__main__":
    main()
