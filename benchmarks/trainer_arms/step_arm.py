"""One trainer in a process of its own: `step_arm <arm> <settings as JSON>`; each line on stdin is one step.

It answers with a line of JSON: seconds of the wall clock and of the processor, gradient norm before clipping,
the largest resident size during the step, and the tokens that went through the model, padding included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trainer_arms.rows import conversation_batch, multi_turn_batch, one_row_per_turn
from vime_agents.trainer import Batch, TrainingSample

Step = Callable[[Batch], tuple[float, int]]
"""Batch -> gradient norm, tokens computed."""

CLIP_GRAD = 1.0


def megatron(settings: dict[str, Any]) -> Step:
    """Packed rows."""
    from vime_trainers.losses.config import LossConfig
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(
        MegatronConfig(
            hf_checkpoint=settings["model"],
            lr=settings["lr"],
            clip_grad=CLIP_GRAD,
            max_tokens_per_gpu=settings["max_tokens"],
            loss=LossConfig(),
        )
    )

    def step(batch: Batch) -> tuple[float, int]:
        metrics = trainer.update(batch)
        computed = sum(int(np.flatnonzero(s.loss_mask)[-1]) for s in batch.samples)
        return metrics["grad_norm"], round(computed / metrics["packing_efficiency"])

    return step


def transformers(settings: dict[str, Any]) -> Step:
    """Padded rows, `rows_per_micro_batch` at a time: in the order in which they come, or sorted by length."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=torch.float32, attn_implementation="sdpa"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], weight_decay=0.0)
    size = settings["rows_per_micro_batch"]

    def step(batch: Batch) -> tuple[float, int]:
        rows = sorted(batch.samples, key=len) if settings["sort"] else list(batch.samples)
        computed = 0
        for start in range(0, len(rows), size):
            computed += _padded_backward(model, rows[start : start + size])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm), computed

    return step


def _padded_backward(model: Any, rows: list[TrainingSample]) -> int:
    import torch

    width = max(map(len, rows))
    ids, scale, mask = torch.zeros(len(rows), width, dtype=torch.long), [], []
    for row, sample in enumerate(rows):
        ids[row, : len(sample)] = torch.from_numpy(sample.token_ids.astype(np.int64))
        pad = width - len(sample)
        mask.append(np.pad(sample.loss_mask, (0, pad))[1:])
        scale.append(np.pad(sample.weights * sample.advantages, (0, pad))[1:])
    attention = torch.tensor(np.arange(width)[None] < np.array([[len(s)] for s in rows])).long()
    logits = model(ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    log_probs = torch.log_softmax(logits.float(), -1).gather(2, ids[:, 1:, None])[..., 0]
    chosen = torch.tensor(np.stack(mask))
    ratio = torch.exp(log_probs - log_probs.detach())
    loss = -(torch.tensor(np.stack(scale)) * ratio)[chosen].sum()
    loss.backward()
    return ids.numel()


def trl(settings: dict[str, Any]) -> Step:
    """TRL's GRPOTrainer; token-mean is its loss type dapo."""
    from benchmarks.trainer_arms.trl_grpo import make_trainer, optimizer_step, padded

    size = settings["rows_per_micro_batch"]
    trainer = make_trainer(
        settings["model"],
        rows_per_micro_batch=size,
        num_micro_batches=settings["num_rows"] // size,
        loss_type="dapo",
        learning_rate=settings["lr"],
        weight_decay=0.0,
        max_grad_norm=CLIP_GRAD,
    )
    norms: list[float] = []
    clip = trainer.accelerator.clip_grad_norm_

    def recorded(*arguments: Any) -> Any:
        norm = clip(*arguments)
        norms.append(float(norm))
        return norm

    trainer.accelerator.clip_grad_norm_ = recorded

    def step(batch: Batch) -> tuple[float, int]:
        whole = padded(batch.samples)
        del whole["old_per_token_logps"]  # one optimizer step: the ratio is 1, as TRL has it then
        optimizer_step(trainer, whole)
        return norms[-1], whole["prompt_ids"].numel() + whole["completion_ids"].numel()

    return step


ARMS: dict[str, Callable[[dict[str, Any]], Step]] = {
    "megatron": megatron,
    "transformers": transformers,
    "trl": trl,
}


def make_batch(request: dict[str, Any], vocab_size: int) -> Batch:
    """What a request asks for: ragged rows, or one conversation merged or by turn."""
    if "lengths" in request:
        return multi_turn_batch(request["lengths"], vocab_size)
    batch = conversation_batch(
        request["num_turns"], prompt=request["prompt"], turn=request["turn"], vocab_size=vocab_size
    )
    return one_row_per_turn(batch) if request["by_turn"] else batch


def _restart_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    step = ARMS[name](settings)
    vocab_size = json.loads((Path(settings["model"]) / "config.json").read_text())["vocab_size"]
    for line in sys.stdin:
        batch = make_batch(json.loads(line), vocab_size)
        _restart_peak()
        started, started_cpu = time.perf_counter(), time.process_time()
        norm, computed = step(batch)
        found = {
            "seconds": time.perf_counter() - started,
            "cpu_s": time.process_time() - started_cpu,
            "grad_norm": norm,
            "peak_mb": _peak_mb(),
            "tokens": batch.num_tokens,
            "computed": computed,
        }
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
