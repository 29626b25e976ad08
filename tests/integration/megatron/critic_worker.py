"""One rank of the critic's tests: `python critic_worker.py <policy> <critic> <output> <layouts as JSON>`.

Rank 0 writes `<layout>.pt`. The process group is in the environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import torch
    import torch.distributed as dist

    from vime_trainers.megatron.device import init_process_group

    init_process_group()
    policy, critic, output = (Path(argument) for argument in sys.argv[1:4])
    for name, layout in json.loads(sys.argv[4]).items():
        resume_as = layout.pop("resume_as", None)
        found = {"new": new_critic(policy, layout), "trained": trained(policy, critic, layout)}
        if resume_as is not None:
            found["resumed"] = resumed(policy, critic, layout, layout | resume_as, output / f"ckpt-{name}")
        if dist.get_rank() == 0:
            torch.save(found, output / f"{name}.pt")
    dist.destroy_process_group()


def make_trainer(policy: Path, layout: dict[str, Any], **critic: Any) -> Any:
    from tests.integration.megatron import critic_oracle, oracle
    from vime_trainers.megatron.config import CriticConfig, MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    own = {
        "lr": critic_oracle.LR,
        "lr_warmup_iters": critic_oracle.WARMUP,
        "value_clip": critic_oracle.VALUE_CLIP,
    }
    config = MegatronConfig(
        hf_checkpoint=str(policy),
        clip_grad=oracle.CLIP_GRAD,
        adam_eps=oracle.ADAM_EPS,
        weight_decay=oracle.WEIGHT_DECAY,
        critic=CriticConfig(**(own | critic)),
        **({"max_tokens_per_gpu": 64} | layout),
    )
    return MegatronTrainer(config)


def values(trainer: Any) -> list[Any]:
    from tests.integration.megatron import critic_oracle

    samples = critic_oracle.make_batch().samples
    return trainer.values([s.token_ids for s in samples], [s.loss_mask for s in samples], ends=True)


def new_critic(policy: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """Out of the policy's folder, which has no head: 0 everywhere, and it can learn."""
    from tests.integration.megatron import critic_oracle

    trainer = make_trainer(policy, layout)
    found = {"before": values(trainer), "weights": {n: w.clone() for n, w in trainer.weights()}}
    found["metrics"] = [trainer.update_critic(critic_oracle.make_batch()) for _ in range(2)]
    found["after"] = values(trainer)
    found["policy_after"] = {n: w.clone() for n, w in trainer.weights()}
    found["version"] = trainer.version
    trainer.close()
    return found


def trained(policy: Path, critic: Path, layout: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import replace

    from tests.integration.megatron import critic_oracle, oracle
    from vime_agents.errors import NonFiniteError, RecordError

    trainer = make_trainer(policy, layout, load=str(critic))
    batch = critic_oracle.make_batch()
    found = {"before": values(trainer), "metrics": [trainer.update_critic(batch) for _ in range(3)]}
    found["after"] = values(trainer)
    found["empty"] = trainer.update_critic(replace(batch, samples=()))
    found["without"] = raised(RecordError, lambda: trainer.update_critic(oracle.make_batch(3)))
    head = getattr(trainer.critic.model, "output_layer", None)
    if head is not None:
        head.weight.data[0, 0] = float("nan")
    found["nan"] = raised(NonFiniteError, lambda: trainer.update_critic(batch))
    trainer.close()
    return found


def resumed(
    policy: Path, critic: Path, layout: dict[str, Any], other: dict[str, Any], folder: Path
) -> dict[str, Any]:
    import torch.distributed as dist

    from tests.integration.megatron import critic_oracle

    batch = critic_oracle.make_batch()
    trainer = make_trainer(policy, layout, load=str(critic))
    trainer.update_critic(batch)
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    trainer.save(folder)
    went_on = [trainer.update_critic(batch) for _ in range(2)]
    trainer.close()
    trainer = make_trainer(policy, other)  # the checkpoint has everything
    trainer.load(folder)
    again = [trainer.update_critic(batch) for _ in range(2)]
    trainer.close()
    return {"went_on": went_on, "again": again}


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


if __name__ == "__main__":
    main()
