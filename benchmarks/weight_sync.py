"""Weight sync by phase, against memcpy and plain files of the same bytes (135M model, real vLLM).

Starts one server of SmolLM2-135M (269 MB in bfloat16, 538 MB in float32 as a trainer on CPU sends it),
publishes its weights again and again through /dev/shm, and proves each sync by the probe.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.measure import interleaved, report
from vime_agents.serving.engine_client import EngineClient
from vime_agents.serving.hf_folder import check_hf_folder
from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig
from vime_trainers.models.smollm2 import ensure_smollm2
from vime_trainers.sync.probe import probe_tokens
from vime_trainers.sync.publisher import PHASES, SyncReport, WeightPublisher
from vime_trainers.sync.weight_file import layout_of, write_weight_file

ROUNDS = 5
DTYPES = {"269 MB": torch.bfloat16, "538 MB": torch.float32}


def main() -> None:
    folder = ensure_smollm2()
    rows: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="weight-sync-") as shm,
        tempfile.TemporaryDirectory(dir=".", prefix=".weight-sync-") as disk,
    ):
        rows, ratios = asyncio.run(syncs(folder, Path(shm)))
        for label, dtype in DTYPES.items():
            rows |= baselines(label, load(folder, dtype), Path(shm), Path(disk))
            total = sorted(rows[f"{label} write + sync + probe"])[ROUNDS // 2]
            for name in ("memcpy", "file in /dev/shm", "file on disk"):
                ratios[f"{label} sync / {name}"] = total / sorted(rows[f"{label} {name}"])[ROUNDS // 2]
    report("weight_sync", rows, "s", ratios)


def load(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The model's tensors."""
    return {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}


async def syncs(folder: Path, shm: Path) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every phase of every round, by size; and what is one number for all."""
    tokens = probe_tokens(check_hf_folder(folder).vocab_size)
    logprobs = reference(folder, tokens)
    rows: dict[str, list[float]] = {}
    version, worst = 0, 0.0
    async with VllmServer(VllmServerConfig(model=folder, max_model_len=1024)) as server:
        client = EngineClient(server.url)
        publisher = WeightPublisher([client], probe_tokens=tokens)
        for label, dtype in DTYPES.items():
            weights = load(folder, dtype)
            for measured in (False, *[True] * ROUNDS):  # the first one pays for imports and buffers
                version += 1
                started = time.monotonic()
                target = shm / "weights.safetensors"
                file = write_weight_file(target, layout_of(weights), weights.items(), version=version)
                write_s = time.monotonic() - started
                done = await publisher.publish(file, version, trainer_logprobs=logprobs)
                worst = max(worst, done.max_probe_logprob_diff)
                for name, seconds in phases(done, write_s).items() if measured else ():
                    rows.setdefault(f"{label} {name}", []).append(seconds)
        await client.aclose()
        (shm / "weights.safetensors").unlink()
    return rows, {
        "server start s": server.startup_s or 0.0,
        "largest probe difference (nats)": f"{worst:.1e}",
    }


def phases(done: SyncReport, write_s: float) -> dict[str, float]:
    """Seconds by name."""
    named = {name: done.seconds[name] for name in PHASES}
    return {
        "write": write_s,
        **named,
        "paused": done.paused_s,
        "write + sync + probe": write_s + done.total_s,
    }


@torch.no_grad()
def reference(folder: Path, tokens: Sequence[int]) -> list[float]:
    """Log-probs of the probe in transformers, float32: the trainer's part."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([list(tokens)])
    rows = model(ids).logits[0, :-1].log_softmax(-1)
    return [float("nan"), *rows.gather(1, ids[0, 1:, None])[:, 0].tolist()]


def baselines(
    label: str, weights: Mapping[str, torch.Tensor], shm: Path, disk: Path
) -> dict[str, list[float]]:
    """What nobody can go below: the same bytes by memcpy, and written to and read from a file."""
    arms = {
        f"{label} memcpy": lambda: timed(lambda: [t.clone() for t in weights.values()]),
        f"{label} file in /dev/shm": lambda: timed(lambda: write_and_read(shm, weights)),
        f"{label} file on disk": lambda: timed(lambda: write_and_read(disk, weights)),
    }
    return interleaved(arms, ROUNDS)


def write_and_read(folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write all bytes, read and touch all bytes; from disk, reads come out of the page cache."""
    file = write_weight_file(folder / "copy.safetensors", layout_of(weights), weights.items(), version=0)
    for tensor in load_file(file.path).values():
        tensor.clone()


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    main()
