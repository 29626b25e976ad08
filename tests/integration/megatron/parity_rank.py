"""One rank of parity.py: `python parity_rank.py <jobs as JSON>`, the process group in the environment."""

from __future__ import annotations

import gc
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
    for job in json.loads(sys.argv[1]):
        model, settings = Path(job["model"]), job["settings"]
        found = train(model, settings, job["budgets"])
        if job["first_step"]:
            found["first_step"] = first_step(model, settings)
        if settings.get("bf16"):
            found["small_steps"] = small_steps(model, settings)
        if dist.get_rank() == 0:
            torch.save(found, job["output"])
        gc.collect()  # the trainers' process groups end, with threads of theirs
    dist.destroy_process_group()


def train(model: Path, settings: dict[str, Any], budgets: list[int]) -> dict[str, Any]:
    """Metrics and gradients; weights after three updates; whether the export is bit-equal.

    `splits`: metrics and gradients again, with other limits of tokens in a micro-batch.
    """
    import oracle
    import torch
    from safetensors.torch import load_file
    from worker import make_trainer, optimizing

    batch = oracle.make_batch(9)
    trainer = make_trainer(model, settings, lr=0.0, clip_grad=0.0)
    first = {name: tensor.clone() for name, tensor in trainer.weights()}
    stored = load_file(model / "model.safetensors")
    found: dict[str, Any] = {
        "round_trip": not first  # not of the first replica
        or (first.keys() == stored.keys() and all(torch.equal(first[n], stored[n]) for n in stored))
    }
    found |= measured(trainer, batch)
    found["splits"] = []
    for budget in budgets:
        trainer.config = replace(trainer.config, max_tokens_per_gpu=budget)
        found["splits"].append(measured(trainer, batch))
    found["unmoved"] = all(torch.equal(first[name], tensor) for name, tensor in trainer.weights())
    trainer.close()
    trainer = optimizing(model, settings)
    for _ in range(3):
        trainer.update(batch)
    found["weights"] = {name: tensor.clone() for name, tensor in trainer.weights()}
    trainer.close()
    return found


def first_step(model: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Weights after one step of Adam, without clipping, weight decay or an epsilon that counts."""
    import oracle
    from worker import make_trainer

    trainer = make_trainer(model, settings, lr=oracle.LR, clip_grad=0.0, weight_decay=0.0, adam_eps=1e-12)
    trainer.update(oracle.make_batch(9))
    found = {name: tensor.clone() for name, tensor in trainer.weights()}
    trainer.close()
    return found


def small_steps(model: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The norms' weights before and after 1 and 24 steps, each far less than the weights are rounded by."""
    import oracle
    from worker import make_trainer

    trainer = make_trainer(
        model,
        settings | {"only_train_params_name_list": "norm"},
        lr=oracle.SMALL_LR,
        clip_grad=0.0,
        weight_decay=0.0,
        adam_eps=1e-12,
    )
    found = []
    for steps in (0, 1, oracle.NUM_SMALL_STEPS - 1):
        for _ in range(steps):
            trainer.update(oracle.make_batch(2))
        found.append({name: tensor.clone() for name, tensor in trainer.weights() if "norm" in name})
    trainer.close()
    return found


def measured(trainer: Any, batch: Any) -> dict[str, Any]:
    """Metrics of an update, and its gradients where each rank has them whole."""
    found = trainer.update(batch)
    if not trainer.config.use_distributed_optimizer:
        found["gradients"] = gradients(trainer)
    return found


def gradients(trainer: Any) -> dict[str, Any]:
    """Under the weights' names and whole: the export does not care what the numbers mean."""
    import torch

    parameters = [p for part in trainer.parts for p in part.parameters()]
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(parameter.main_grad)
        found = {name: tensor.clone() for name, tensor in trainer.weights()}
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
    return found


if __name__ == "__main__":
    main()
