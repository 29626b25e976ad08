"""The folder that a run leaves for others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vime_agents.errors import CheckpointError
from vime_trainers.ray.hf_export import check_hf_target, save_hf_folder
from vime_trainers.sync.weight_file import layout_of
from vime_trainers.sync.weight_shards import write_weight_shards


class Group:
    """Exports one tensor, which says after which update."""

    fails = elsewhere = False

    def export_folder(self, folder: Path, dtype: str, *, version: int, shard_size: int) -> int:
        if self.elsewhere:
            return 0
        weights = {"w": torch.full((2,), float(version), dtype=getattr(torch, dtype))}
        size = write_weight_shards(
            folder, layout_of(weights), weights.items(), version=version, shard_size=shard_size
        )
        if self.fails:
            raise CheckpointError(f"cannot write weights to {folder}: No space left on device")
        return size


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3", "dtype": "bfloat16"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model-00001-of-00002.safetensors").write_text("old")
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def save(source: Path, update: int, *, group: Group | None = None, run: str = "run") -> Path:
    target = source.parent / "out"
    save_hf_folder(
        group or Group(),  # type: ignore[arg-type]
        source,
        target,
        run_dir=source.parent / run,
        update=update,
        dtype="float32",
        shard_size=100,
    )
    return target


def test_a_folder_has_the_weights_the_tokenizer_and_a_config_of_the_weights_type(source):
    target = save(source, 3)
    assert {p.name for p in target.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "vime_agents.json",
    }
    assert json.loads((target / "config.json").read_text()) == {"model_type": "qwen3", "dtype": "float32"}
    assert load_file(target / "model.safetensors")["w"].tolist() == [3, 3]
    assert json.loads((target / "vime_agents.json").read_text())["update"] == 3


def test_a_run_replaces_its_own_export_and_no_other_folder(source):
    save(source, 3)
    assert load_file(save(source, 4) / "model.safetensors")["w"].tolist() == [4, 4]
    with pytest.raises(
        CheckpointError, match=r"--save-hf .*out: exists already, and is no export of the run"
    ):
        save(source, 5, run="another")
    (source.parent / "thesis").mkdir()
    with pytest.raises(CheckpointError, match="thesis: exists already"):
        check_hf_target(source.parent / "thesis", source.parent / "run")
    check_hf_target(source.parent / "out", source.parent / "run")
    check_hf_target(source.parent / "new", source.parent / "run")


def test_an_export_that_fails_leaves_the_one_before(source):
    target, full, elsewhere = save(source, 3), Group(), Group()
    full.fails = elsewhere.elsewhere = True
    with pytest.raises(CheckpointError, match=r"cannot write weights to .*No space left"):
        save(source, 4, group=full)
    with pytest.raises(CheckpointError, match="rank 0 is on another host"):
        save(source, 4, group=elsewhere)
    assert load_file(target / "model.safetensors")["w"].tolist() == [3, 3]
