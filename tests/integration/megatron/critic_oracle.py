"""What the critic must compute, by other means: a sequence classifier of transformers, one row at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.integration.megatron import oracle
from vime_agents.trainer import Batch

LR, WARMUP, VALUE_CLIP = 2e-2, 2, 0.3


def make_model(folder: Path) -> None:
    """A random Qwen3 with a random head of one label."""
    config = transformers.Qwen3Config(
        vocab_size=oracle.VOCAB_SIZE,
        intermediate_size=96,
        num_hidden_layers=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        num_labels=1,
        tie_word_embeddings=False,
        **oracle.SHAPES["qwen3"],
    )
    config.rope_parameters = {"rope_type": "default", "rope_theta": 5000.0}
    torch.manual_seed(3)
    model = transformers.Qwen3ForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def load(folder: Path) -> torch.nn.Module:
    return transformers.Qwen3ForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def make_batch() -> Batch:
    """The policy's batch with values and returns, so far apart that some values are clipped."""
    rng = np.random.default_rng(5)
    batch = oracle.make_batch(9)
    samples = []
    for sample in batch.samples:
        known = {n: rng.normal(size=len(sample)).astype(np.float32) for n in ("values", "returns")}
        samples.append(replace(sample, **known))
    return replace(batch, samples=tuple(samples))


def state_values(model: torch.nn.Module, ids: np.ndarray) -> torch.Tensor:
    """[num_tokens] the value of the state after each token."""
    hidden = model.model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).last_hidden_state
    return model.score(hidden)[0, :, 0]


def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    total = torch.zeros(())
    for sample in batch.samples:
        values = state_values(model, sample.token_ids)
        for t in np.flatnonzero(sample.loss_mask):
            value, old, target = values[t - 1], float(sample.values[t]), float(sample.returns[t])
            bounded = old + (value - old).clamp(-VALUE_CLIP, VALUE_CLIP)
            worst = torch.maximum((value - target) ** 2, (bounded - target) ** 2)
            total = total + float(sample.weights[t]) * worst / 2
    return total


def train(model: torch.nn.Module, batch: Batch, num_updates: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of each AdamW step, its rate rising over WARMUP steps."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    decay = oracle.WEIGHT_DECAY
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, eps=oracle.ADAM_EPS, betas=(0.9, 0.999))
    found = []
    for step in range(num_updates):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), oracle.CLIP_GRAD)
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, (step + 1) / WARMUP)
        optimizer.step()
        found.append((value.item(), norm.item()))
    return found
