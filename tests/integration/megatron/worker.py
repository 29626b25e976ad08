"""One trainer rank of the parity tests: runs checks under several layouts, one after the other.

`python worker.py <model folder> <output folder> <layouts as JSON>`, the process group in the environment.
Rank 0 writes `<layout>.pt`: what the tests compare. Starting a process takes longer than all of its checks.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any


def main() -> None:
    import torch
    import torch.distributed as dist

    from vime_trainers.megatron.device import init_process_group

    init_process_group()  # once: the trainers come and go
    model, output = Path(sys.argv[1]), Path(sys.argv[2])
    for name, layout in json.loads(sys.argv[3]).items():
        resume_as, of_rows = layout.pop("resume_as", None), layout.pop("row_losses", False)
        found = {"parity": parity(model, layout), "training": training(model, layout)}
        if of_rows:
            found["row_losses"] = row_losses(model, layout)
        if resume_as is not None:
            folder = output / f"checkpoint-{name}"
            found["resume"] = resume(model, layout, layout | resume_as, folder)
        if dist.get_rank() == 0:
            torch.save(found, output / f"{name}.pt")
    dist.destroy_process_group()


def make_trainer(model: Path, layout: dict[str, Any], **settings: Any) -> Any:
    import oracle

    from vime_trainers.losses.config import LossConfig
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    loss = LossConfig(tis_clip=oracle.TIS_CLIP, entropy_coef=oracle.ENTROPY_COEF, kl_loss_coef=oracle.KL_COEF)
    values = {"log_probs_chunk_size": 16, "max_tokens_per_gpu": 64, "loss": loss} | layout | settings
    return MegatronTrainer(MegatronConfig(hf_checkpoint=str(model), **values))


def parity(model: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """Log-probs, exported weights, loss, gradients and their norm, without changing a weight."""
    import numpy as np
    import oracle
    import torch

    from vime_agents.errors import ConfigError, NonFiniteError

    trainer = make_trainer(model, layout, lr=0.0, clip_grad=0.0)
    batch = oracle.make_batch(9)
    rows = [s.token_ids for s in batch.samples] + [np.array([5], np.int32)]
    found: dict[str, Any] = {
        "logprobs": trainer.logprobs(rows, temperature=oracle.TEMPERATURE),
        "weights": {n: w.clone() for n, w in trainer.weights()},
        "bf16": {n: w.clone() for n, w in trainer.weights(torch.bfloat16)},
        "metrics": trainer.update(batch),
    }
    if not layout.get("use_distributed_optimizer"):
        # Under the weights' names and whole: the export does not care what the numbers mean.
        kept = [p.detach().clone() for p in trainer.model.parameters()]
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.copy_(parameter.main_grad)
            found["gradients"] = {n: w.clone() for n, w in trainer.weights()}
            for parameter, value in zip(trainer.model.parameters(), kept, strict=True):
                parameter.copy_(value)
    found["one_row"] = trainer.update(replace(batch, samples=batch.samples[:1]))
    found["empty"] = trainer.update(replace(batch, samples=()))
    found["version"] = trainer.version
    found["too_long"] = raised(
        ConfigError, lambda: trainer.logprobs([np.zeros(300, np.int32)], temperature=1.0)
    )
    with torch.no_grad():
        trainer.model.decoder.layers[0].mlp.linear_fc2.weight[0, 0] = float("nan")
    found["non_finite"] = raised(NonFiniteError, lambda: trainer.update(batch))
    found["version_after_non_finite"] = trainer.version
    trainer.close()
    return found


def row_losses(model: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """Metrics of losses that need more of a micro-batch than one token at a time."""
    import oracle

    from vime_agents.errors import RecordError
    from vime_trainers.losses.config import LossConfig

    found: dict[str, Any] = {}
    for name, settings in oracle.ROW_LOSSES.items():
        trainer = make_trainer(model, layout, lr=0.0, clip_grad=0.0, loss=LossConfig(**settings))
        found[name] = trainer.update(oracle.row_batch(name))
        trainer.close()
    for top_k in oracle.TOP_KS:
        loss = LossConfig(opd_kl_coef=oracle.DISTILLATION, opd_top_k=top_k)
        settings = {"loss": loss, "opd_teacher_load": str(model.with_name("teacher"))}
        trainer = make_trainer(model, layout, lr=0.0, clip_grad=0.0, **settings)
        found[f"top {top_k}"] = trainer.update(oracle.make_batch(9))
        trainer.close()
    loss = LossConfig(opd_kl_coef=1.0)
    trainer = make_trainer(model, layout, loss=loss)
    found["no-teacher"] = raised(RecordError, lambda: trainer.update(oracle.make_batch(9)))
    trainer.close()
    return found


def raised(kind: type[Exception], call: Any) -> list[str]:
    """The messages of all ranks."""
    import torch.distributed as dist

    message = ""
    try:
        call()
    except kind as error:
        message = str(error)
    everywhere: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everywhere, message)
    return everywhere


def optimizing(model: Path, layout: dict[str, Any]) -> Any:
    import oracle

    return make_trainer(
        model,
        layout,
        lr=oracle.LR,
        clip_grad=oracle.CLIP_GRAD,
        adam_eps=oracle.ADAM_EPS,
        weight_decay=oracle.WEIGHT_DECAY,
    )


def training(model: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """Weights after two updates."""
    import oracle

    trainer = optimizing(model, layout)
    batch = oracle.make_batch(9)
    metrics = [trainer.update(batch) for _ in range(2)]
    found = {"metrics": metrics, "weights": {n: w.clone() for n, w in trainer.weights()}}
    trainer.close()
    return found


def resume(model: Path, layout: dict[str, Any], resumed: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Losses after a checkpoint, by the trainer that wrote it and by one that reads it."""
    import oracle
    import torch.distributed as dist

    batch = oracle.make_batch(9)
    trainer = optimizing(model, layout)
    trainer.update(batch)
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    trainer.save(folder)
    went_on = [trainer.update(batch) for _ in range(2)]
    from vime_agents.errors import CheckpointError

    not_empty = raised(CheckpointError, lambda: trainer.save(folder))
    trainer.close()
    trainer = optimizing(model, resumed)
    trainer.load(folder)
    version = trainer.version
    again = [trainer.update(batch) for _ in range(2)]
    nothing = raised(CheckpointError, lambda: trainer.load(folder / "nowhere"))
    trainer.close()
    return {
        "went_on": went_on,
        "again": again,
        "version": version,
        "not_empty": not_empty,
        "nothing": nothing,
    }


if __name__ == "__main__":
    main()
