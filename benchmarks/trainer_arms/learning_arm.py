"""One process of the learning benchmark: `learning_arm <seeds> <updates> <method>...`, a JSON line a run."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.integration.megatron import call_observe_answer as task
from vime_agents.learning.advantages import dr_grpo, grpo, no_baseline, rloo
from vime_agents.learning.samples import build_batches
from vime_agents.trainer import Batch

NUM_STEPS, TASKS_PER_STEP = 2, 16
LR, BETA2, CLIP_GRAD = 1.25e-3, 0.95, 1.0
RAW, SCALED = 0.01, 0.15
"""Entropy bonus where advantages are in units of the reward, and where they are divided by its deviation,
which is a fifth while the task is learned."""

METHODS: dict[str, dict[str, Any]] = {
    "GRPO": {
        "batch": {"estimator": grpo, "aggregation": "seq-mean-token-mean"},
        "loss": {"entropy_coef": SCALED},
    },
    "Dr.GRPO": {
        "batch": {"estimator": dr_grpo, "aggregation": "seq-mean-token-sum-norm", "norm_length": 6},
        "loss": {"entropy_coef": RAW},
    },
    "RLOO": {"batch": {"estimator": rloo}, "loss": {"pg_loss_type": "reinforce", "entropy_coef": RAW}},
    "REINFORCE++": {"batch": {"estimator": no_baseline, "whitened": True}, "loss": {"entropy_coef": SCALED}},
    "GSPO": {
        "batch": {"estimator": grpo, "aggregation": "seq-mean-token-mean"},
        "loss": {"pg_loss_type": "gspo", "entropy_coef": SCALED},
    },
    "CISPO": {
        "batch": {"estimator": grpo},
        "loss": {"pg_loss_type": "cispo", "eps_clip_high": 0.28, "entropy_coef": SCALED},
    },
}
"""Arguments of `build_batches` and of `LossConfig`; what is not said is their default."""

Update = Callable[[Batch], Any]


def learn(
    model: Any, update: Update, refresh: Callable[[], None], seed: int, num_updates: int, **batch: Any
) -> list[float]:
    """Play with `model` and update in turns; the mean reward of each rollout."""
    import torch

    def predict(rows: np.ndarray) -> Any:
        return torch.log_softmax(model(torch.from_numpy(rows.astype(np.int64))).logits[:, -1], -1)

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    rewards = []
    for rollout in range(num_updates // NUM_STEPS):
        drawn = task.draw_tasks(rng, NUM_STEPS * TASKS_PER_STEP)
        played = task.play(predict, *(x.repeat(task.GROUP_SIZE, axis=0) for x in drawn), greedy=False)
        rewards.append(float(np.mean([p.reward for p in played])))
        episodes = [task.to_episode(p, i, rollout, p.reward) for i, p in enumerate(played)]
        for step in build_batches(
            episodes, num_steps=NUM_STEPS, temperature=1.0, keep_zero_advantage=True, **batch
        ):
            update(step)
        refresh()
    return rewards


def load_model(folder: Path) -> Any:
    """What samples; transformers, in both arms."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def ours(folder: Path, method: str, seed: int, num_updates: int) -> list[float]:
    """With `MegatronTrainer`, whose weights are exported after each rollout."""
    import torch

    from vime_trainers.losses.config import LossConfig
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    settings, model = METHODS[method], load_model(folder)
    loss = LossConfig(old_logprobs="rollout", **settings["loss"])
    config = MegatronConfig(
        hf_checkpoint=str(folder), lr=LR, adam_beta2=BETA2, clip_grad=CLIP_GRAD, seed=seed, loss=loss
    )
    trainer = MegatronTrainer(config)
    parameters = model.state_dict()

    def refresh() -> None:
        with torch.no_grad():
            for name, weight in trainer.weights():
                parameters[name].copy_(weight)

    rewards = learn(model, trainer.update, refresh, seed, num_updates, **settings["batch"])
    trainer.close()
    return rewards


def theirs(folder: Path, seed: int, num_updates: int) -> list[float]:
    """With TRL's GRPOTrainer, which trains the model that samples."""
    from benchmarks.trainer_arms.trl_grpo import make_trainer, optimizer_step, padded

    model = load_model(folder)
    trainer = make_trainer(
        model,
        rows_per_micro_batch=TASKS_PER_STEP * task.GROUP_SIZE,
        num_micro_batches=1,
        loss_type="grpo",
        learning_rate=LR,
        adam_beta2=BETA2,
        weight_decay=0.0,
        max_grad_norm=CLIP_GRAD,
        entropy_coef=SCALED,
    )

    def update(batch: Batch) -> None:
        optimizer_step(trainer, padded(batch.samples))

    return learn(model, update, lambda: None, seed, num_updates, **METHODS["GRPO"]["batch"])


def main(arguments: Sequence[str]) -> None:
    num_seeds, num_updates, *methods = arguments
    in_trl = [m for m in methods if m not in METHODS]
    if not in_trl:
        from vime_trainers.megatron.device import init_process_group

        init_process_group()  # once: the trainers come and go
    for seed in range(int(num_seeds)):
        for method in methods:
            with tempfile.TemporaryDirectory() as folder:
                task.make_model(Path(folder), seed)
                if in_trl:
                    rewards = theirs(Path(folder), seed, int(num_updates))
                else:
                    rewards = ours(Path(folder), method, seed, int(num_updates))
            sys.stdout.write(json.dumps({"method": method, "seed": seed, "rewards": rewards}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
