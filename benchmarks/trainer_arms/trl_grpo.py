"""TRL's GRPOTrainer, given rows that were played elsewhere: its own loss, backward pass and optimizer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from vime_agents.trainer import TrainingSample

PAD = 0


def make_trainer(model: Any, *, rows_per_micro_batch: int, num_micro_batches: int, **settings: Any) -> Any:
    """A GRPOTrainer whose batches are handed to `optimizer_step` instead of being generated."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    class Given(GRPOTrainer):
        def _prepare_inputs(self, generation_batch: Any) -> Any:
            return generation_batch

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        gradient_checkpointing=False,
        per_device_train_batch_size=rows_per_micro_batch,
        gradient_accumulation_steps=num_micro_batches,
        num_generations=2,
        generation_batch_size=rows_per_micro_batch * num_micro_batches,
        beta=0.0,
        lr_scheduler_type="constant",
        **settings,
    )
    trainer = Given(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["-"] * 2}),
        processing_class=_tokenizer(PreTrainedTokenizerFast),
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = num_micro_batches
    trainer.model.train()
    return trainer


def _tokenizer(kind: Any) -> Any:
    """The constructor wants one; rows are token ids already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return kind(tokenizer_object=Tokenizer(WordLevel({"-": PAD}, "-")), pad_token="-", eos_token="-")


def padded(samples: Sequence[TrainingSample]) -> dict[str, torch.Tensor]:
    """As `GRPOTrainer._generate_and_score_completions` returns it: prompts left-padded, completions right.

    Both to the longest of the whole batch. The completion begins with the first trainable token; what the
    environment wrote inside it is masked by `tool_mask`.
    """
    from trl.trainer.utils import pad

    prompts, completions, masks, old, advantages = [], [], [], [], []
    for sample in samples:
        start = int(np.flatnonzero(sample.loss_mask)[0])
        prompts.append(torch.from_numpy(sample.token_ids[:start].astype(np.int64)))
        completions.append(torch.from_numpy(sample.token_ids[start:].astype(np.int64)))
        masks.append(torch.from_numpy(sample.loss_mask[start:].astype(np.int64)))
        old.append(torch.from_numpy(np.nan_to_num(sample.rollout_logprobs[start:])))
        trainable = sample.advantages[sample.loss_mask]
        advantages.append(float(trainable[0]))
    ones = [torch.ones_like(ids) for ids in (*prompts, *completions)]
    left, right = (
        {"padding_value": PAD, "padding_side": "left"},
        {"padding_value": PAD, "padding_side": "right"},
    )
    return {
        "prompt_ids": pad(prompts, **left),
        "prompt_mask": pad(ones[: len(prompts)], **left),
        "completion_ids": pad(completions, **right),
        "completion_mask": pad(ones[len(prompts) :], **right),
        "tool_mask": pad(masks, **right),
        "old_per_token_logps": pad(old, **right),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(sum(int(s.loss_mask.sum()) for s in samples)),
    }


def optimizer_step(trainer: Any, batch: dict[str, torch.Tensor]) -> float:
    """Forward, backward, clipping and AdamW as `Trainer._inner_training_loop` calls them; the loss."""
    from trl.trainer.utils import split_tensor_dict

    count = trainer.args.gradient_accumulation_steps
    loss = 0.0
    for micro in split_tensor_dict(batch, count):
        loss += float(trainer.training_step(trainer.model, micro, None))
    if trainer.args.max_grad_norm:
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
    trainer.optimizer.step()
    trainer.model.zero_grad()
    return loss
