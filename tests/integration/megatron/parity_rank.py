"""One rank of parity.py: `python parity_rank.py <jobs as JSON>`, the process group in the environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import torch
    import torch.distributed as dist

    from vime_trainers.megatron.device import init_process_group

    init_process_group()  # once: the trainers come and go
    for job in json.loads(sys.argv[1]):
        found = train(Path(job["model"]), job["settings"])
        if dist.get_rank() == 0:
            torch.save(found, job["output"])
    dist.destroy_process_group()


def train(model: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Loss, gradients and their norm; weights after three updates; whether the export is bit-equal."""
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
    metrics = trainer.update(batch)
    found |= {name: metrics[name] for name in ("loss", "grad_norm")}
    if not settings.get("use_distributed_optimizer"):
        found["gradients"] = gradients(trainer)
    trainer.close()
    trainer = optimizing(model, settings)
    for _ in range(3):
        trainer.update(batch)
    found["weights"] = {name: tensor.clone() for name, tensor in trainer.weights()}
    trainer.close()
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
