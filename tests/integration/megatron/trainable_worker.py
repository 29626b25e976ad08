"""One rank of the tests of what is trained: `python trainable_worker.py <model> <output> <layouts as JSON>`.

Rank 0 writes `<layout>.pt` and the adapters beside it. The process group is in the environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ADAPTERS = {"rank": 3, "alpha": 12.0}
SOME = {"rank": 2, "alpha": 2.0, "target_modules": ("v_proj", "down_proj")}
LISTS = {
    "one-layer": {"only_train_params_name_list": r"layers\.1\.mlp"},
    "no-norms": {"freeze_params_name_list": r"embed_tokens norm\."},
}


def main() -> None:
    import torch
    import torch.distributed as dist

    from vime_trainers.megatron.device import init_process_group

    init_process_group()
    model, output = Path(sys.argv[1]), Path(sys.argv[2])
    for name, layout in json.loads(sys.argv[3]).items():
        resume_as = layout.pop("resume_as", None)
        found: dict[str, Any] = {
            "all": adapted(model, layout, ADAPTERS, output / f"{name}-all"),
            "some": adapted(model, layout, SOME, output / f"{name}-some"),
            "lists": {key: trained(model, layout, lists) for key, lists in LISTS.items()},
        }
        if resume_as is not None:
            found["resumed"] = resumed(model, layout, layout | resume_as, output / f"ckpt-{name}")
        if dist.get_rank() == 0:
            torch.save(found, output / f"{name}.pt")
    dist.destroy_process_group()


def make_trainer(model: Path, layout: dict[str, Any], **settings: Any) -> Any:
    from tests.integration.megatron import oracle
    from vime_trainers.losses.config import LossConfig
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    loss = LossConfig(tis_clip=oracle.TIS_CLIP, entropy_coef=oracle.ENTROPY_COEF, kl_loss_coef=oracle.KL_COEF)
    config = MegatronConfig(
        hf_checkpoint=str(model),
        lr=oracle.LR,
        clip_grad=oracle.CLIP_GRAD,
        adam_eps=oracle.ADAM_EPS,
        weight_decay=oracle.WEIGHT_DECAY,
        loss=loss,
        **({"max_tokens_per_gpu": 64} | layout | settings),
    )
    return MegatronTrainer(config)


def with_adapters(model: Path, layout: dict[str, Any], settings: dict[str, Any]) -> Any:
    from vime_trainers.megatron.config import LoraConfig

    return make_trainer(model, layout, lora=LoraConfig(**settings))


def weights(trainer: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in trainer.weights()}


def adapted(model: Path, layout: dict[str, Any], settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Three updates of adapters."""
    from tests.integration.megatron import oracle

    trainer = with_adapters(model, layout, settings)
    trainer.save_adapter(folder / "first")
    batch = oracle.make_batch(9)
    found = {"before": weights(trainer), "metrics": [trainer.update(batch) for _ in range(3)]}
    found["after"] = weights(trainer)
    rows = [s.token_ids for s in batch.samples]
    found["logprobs"] = trainer.logprobs(rows, temperature=oracle.TEMPERATURE)
    trainer.save_adapter(folder / "last")
    trainer.close()
    return found


def trained(model: Path, layout: dict[str, Any], lists: dict[str, str]) -> dict[str, Any]:
    """Two updates of some of the weights."""
    from tests.integration.megatron import oracle

    trainer = make_trainer(model, layout, **lists)
    batch = oracle.make_batch(9)
    found = {"metrics": [trainer.update(batch) for _ in range(2)], "after": weights(trainer)}
    trainer.close()
    return found


def resumed(model: Path, layout: dict[str, Any], other: dict[str, Any], folder: Path) -> dict[str, Any]:
    import torch.distributed as dist

    from tests.integration.megatron import oracle

    batch = oracle.make_batch(9)
    trainer = with_adapters(model, layout, ADAPTERS)
    trainer.update(batch)
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    trainer.save(folder)
    went_on = [trainer.update(batch) for _ in range(2)]
    trainer.close()
    trainer = with_adapters(model, other, ADAPTERS)
    trainer.load(folder)
    again = [trainer.update(batch) for _ in range(2)]
    trainer.close()
    return {"went_on": went_on, "again": again}


if __name__ == "__main__":
    main()
