"""Real tokens per second of a training step: MegatronTrainer on packed rows, transformers on padded ones.

`OMP_NUM_THREADS=1 make bench-training BENCH_FLAGS="--rows N --repeats N --model FOLDER"`

Both arms hold the same weights and see the same ragged rows in float32 on this process's threads. An arm's
step is forward and backward of the policy-gradient loss over all rows; neither steps its optimizer. The arms
take turns, so that a busy machine slows both. The padded arm is the usual one: rows padded to the longest of
their micro-batch, logits of every position. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from vime_agents.trainer import Batch, TrainingSample
from vime_trainers.models.smollm2 import ensure_smollm2


def ragged_batch(num_rows: int, shortest: int, longest: int, vocab_size: int) -> Batch:
    """Rows whose second half is trainable, lengths uniform in [shortest, longest]."""
    rng = np.random.default_rng(0)
    samples = []
    for index in range(num_rows):
        size = int(rng.integers(shortest, longest + 1))
        mask = np.arange(size) >= size // 2
        samples.append(
            TrainingSample(
                id=f"e{index}/agent/0",
                episode_id=f"e{index}",
                group_id="g",
                agent="agent",
                token_ids=rng.integers(0, vocab_size, size).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=np.where(mask, -10.0, np.nan).astype(np.float32),
                advantages=np.where(mask, rng.normal(), 0).astype(np.float32),
                weights=np.where(mask, 1 / (num_rows * mask.sum()), 0).astype(np.float32),
                weight_versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )
    return Batch(samples=tuple(samples), temperature=1.0)


def padded_step(model: Any, batch: Batch, rows_per_micro_batch: int) -> float:
    """Forward and backward with transformers; returns the loss."""
    import torch

    model.zero_grad()
    total = 0.0
    ordered = sorted(batch.samples, key=len)  # the padded arm may sort too: least padding
    for start in range(0, len(ordered), rows_per_micro_batch):
        part = ordered[start : start + rows_per_micro_batch]
        width = max(map(len, part))
        ids, mask, scale = torch.zeros(len(part), width, dtype=torch.long), [], []
        for row, sample in enumerate(part):
            ids[row, : len(sample)] = torch.from_numpy(sample.token_ids.astype(np.int64))
            pad = width - len(sample)
            mask.append(np.pad(sample.loss_mask, (0, pad))[1:])
            scale.append(np.pad(sample.weights * sample.advantages, (0, pad))[1:])
        attention = torch.tensor(np.arange(width)[None] < np.array([[len(s)] for s in part])).long()
        logits = model(ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        log_probs = torch.log_softmax(logits.float(), -1).gather(2, ids[:, 1:, None])[..., 0]
        loss = -(torch.tensor(np.stack(scale)) * log_probs)[torch.tensor(np.stack(mask))].sum()
        loss.backward()
        total += loss.item()
    return total


def main() -> None:
    """Run both arms in turns and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a Hugging Face folder (default: SmolLM2-135M)")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens-per-gpu", type=int, default=2048)
    options = parser.parse_args()
    model = options.model or str(ensure_smollm2())

    import torch
    import transformers

    from vime_trainers.losses.config import LossConfig
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    config = MegatronConfig(
        hf_checkpoint=model,
        lr=0.0,
        max_tokens_per_gpu=options.max_tokens_per_gpu,
        loss=LossConfig(pg_loss_type="reinforce"),
    )
    trainer = MegatronTrainer(config)
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="sdpa"
    )
    batch = ragged_batch(options.rows, 50, 500, trainer.shape.vocab_size)
    rows_per_micro_batch = max(1, options.max_tokens_per_gpu // 500)
    seconds: dict[str, list[float]] = {"megatron, packed": [], "transformers, padded": []}
    losses: dict[str, float] = {}
    for _ in range(options.repeats):
        metrics = trainer.update(batch)
        seconds["megatron, packed"].append(metrics["forward_backward_s"])
        losses["megatron, packed"] = metrics["loss"]
        started = time.perf_counter()
        losses["transformers, padded"] = padded_step(plain, batch, rows_per_micro_batch)
        seconds["transformers, padded"].append(time.perf_counter() - started)
    gap = abs(losses["megatron, packed"] - losses["transformers, padded"])
    if gap > 1e-3 * max(1.0, abs(losses["transformers, padded"])):
        raise SystemExit(f"the arms do not compute the same loss: {losses}")

    speeds = {name: batch.num_tokens / statistics.median(times) for name, times in seconds.items()}
    ratio = speeds["megatron, packed"] / speeds["transformers, padded"]
    print(f"{options.rows} rows, {batch.num_tokens} tokens, {torch.get_num_threads()} thread(s)")
    print(f"{'arm':24}{'median s':>10}{'tokens/s':>12}{'loss':>12}")
    for name, speed in speeds.items():
        print(f"{name:24}{statistics.median(seconds[name]):>10.2f}{speed:>12.1f}{losses[name]:>12.5f}")
    print(f"ratio {ratio:.2f}")
    line = {
        "benchmark": "training",
        "ratio": round(ratio, 3),
        "tokens_per_s": {name: round(speed, 1) for name, speed in speeds.items()},
        "num_tokens": batch.num_tokens,
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
