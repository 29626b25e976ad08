"""The trainer's weights as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import shutil
from pathlib import Path

from vime_agents.errors import CheckpointError
from vime_trainers.ray.trainer_group import TrainerGroup


def save_hf_folder(trainer: TrainerGroup, source: Path, target: Path) -> None:
    """Write `target`: the trainer's weights, and config and tokenizer of `source`.

    Raises:
        CheckpointError: `target` exists already.
    """
    if target.exists():
        raise CheckpointError(f"--save-hf {target}: exists already")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".safetensors.index.json")):
            shutil.copy2(file, partial / file.name)
    trainer.export(partial / "model.safetensors", version=trainer.version)
    partial.rename(target)
