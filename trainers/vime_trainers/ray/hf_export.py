"""The trainer's weights as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from vime_agents.errors import CheckpointError
from vime_agents.storage.json_lines import sync_path
from vime_trainers.ray.trainer_group import Dtype, TrainerGroup

ORIGIN = "vime_agents.json"
"""Says which run made a folder, and after which update."""


def check_hf_target(target: Path, run_dir: Path, flag: str = "--save-hf") -> None:
    """Raises CheckpointError: `target`, which `flag` named, exists, and is not an export of this run."""
    if target.exists() and _made_by(target) != str(run_dir.resolve()):
        raise CheckpointError(
            f"{flag} {target}: exists already, and is no export of the run in {run_dir}; give another folder"
        )


def save_hf_folder(
    trainer: TrainerGroup,
    source: Path,
    target: Path,
    *,
    run_dir: Path,
    update: int,
    dtype: Dtype,
    shard_size: int,
    flag: str = "--save-hf",
) -> None:
    """Write `target`: the trainer's weights, and config and tokenizer of `source`; whole or not at all.

    An earlier export of the same run is replaced: the run went back to a checkpoint, or was lengthened.

    Args:
        trainer: its rank 0 must see the folder.
        source: the folder that the model came from.
        target: new, or of this run.
        run_dir: of the run.
        update: updates done.
        dtype: of the weights.
        shard_size: most bytes of one file's tensors.
        flag: that named the folder, for the errors.

    Raises:
        CheckpointError: `target` is something else's, or cannot be written.
    """
    check_hf_target(target, run_dir, flag)
    target = target.absolute()  # a rank has another working directory
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for file in source.iterdir():
            if file.is_file() and not file.name.endswith((".safetensors", ".safetensors.index.json")):
                shutil.copy2(file, partial / file.name)
        _set_dtype(partial / "config.json", dtype)
        origin = {"run_dir": str(run_dir.resolve()), "update": update}
        (partial / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
        trainer.export_folder(partial, dtype, version=update, shard_size=shard_size)
        if not any(partial.glob("*.safetensors")):
            raise CheckpointError(
                f"{flag} {target}: trainer rank 0 is on another host, which wrote the weights there; give "
                "a folder that all hosts see"
            )
        for path in [*partial.iterdir(), partial]:
            sync_path(path)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        sync_path(target.parent)
    except OSError as error:
        raise CheckpointError(f"{flag} {target}: cannot be written: {error}") from error


def _made_by(folder: Path) -> str | None:
    try:
        return json.loads((folder / ORIGIN).read_text())["run_dir"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _set_dtype(path: Path, dtype: Dtype) -> None:
    """Loaders take the type of the weights from here: let it be that of the files."""
    config = json.loads(path.read_text())
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    path.write_text(json.dumps(config | {key: dtype}, indent=2) + "\n")
