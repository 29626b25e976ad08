"""A model folder that an engine could not load is refused before the engine is started."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from vime_agents.errors import ConfigError
from vime_agents.serving.hf_folder import check_hf_folder, same_tokenizer

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8, "max_position_embeddings": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete model: 8 x 4 embeddings and a vector of 4, float32."""
    tensors = {"embed.weight": np.zeros((8, 4), np.float32), "norm.weight": np.zeros(4, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_a_complete_folder_is_described(folder: Path):
    info = check_hf_folder(folder)
    assert info.tensors == {"embed.weight": (8, 4), "norm.weight": (4,)}
    assert (info.num_parameters, info.num_bytes) == (36, 144)
    assert (info.architecture, info.vocab_size, info.max_context_tokens) == ("Qwen3ForCausalLM", 8, 64)


def test_shards_of_an_index_are_joined(folder: Path):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": np.zeros((8, 4), np.float32)}, folder / "model-00002-of-00002.safetensors")
    weight_map = {
        "embed.weight": "model-00001-of-00002.safetensors",
        "norm.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert set(check_hf_folder(folder).tensors) == set(weight_map)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks model-00002-of-00002\.safetensors"):
        check_hf_folder(folder)


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_hf_folder(folder)
    message = str(caught.value)
    assert message.startswith(f"--hf-checkpoint {folder}: ")
    assert "Fix: " in message
    return message


def test_a_missing_folder_is_named(tmp_path: Path):
    assert "does not exist" in refused(tmp_path / "nowhere")


def test_a_file_is_no_folder(folder: Path):
    assert "is a file" in refused(folder / "config.json")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no *.safetensors"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_each_missing_part_is_named(folder: Path, name: str, said: str):
    (folder / name).unlink()
    assert said in refused(folder)


def test_a_config_that_is_not_json_is_named(folder: Path):
    (folder / "config.json").write_text("{")
    assert "config.json is not JSON" in refused(folder)


@pytest.mark.parametrize("kept", [0, 4, 40, -1])
def test_a_weight_file_cut_off_anywhere_is_refused(folder: Path, kept: int):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    message = refused(folder)
    assert "cut off within its header" in message or "its header promises" in message


def test_a_header_that_is_not_json_is_refused(folder: Path):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"oops")
    assert "broken header" in refused(folder)


def test_a_file_without_tensors_is_refused(folder: Path):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert "holds no tensor" in refused(folder)


def test_tokenizers_are_the_same_when_ids_mean_the_same_text(tmp_path: Path):
    def model(name: str, vocab: dict[str, int], added: str, **more: object) -> Path:
        path = tmp_path / name
        path.mkdir()
        table = {"model": {"vocab": vocab}, "added_tokens": [{"id": 9, "content": added}], **more}
        (path / "tokenizer.json").write_text(json.dumps(table))
        return path

    one = model("one", {"a": 0, "b": 1}, "<end>")
    assert same_tokenizer(one, model("other", {"a": 0, "b": 1}, "<end>", post_processor={"type": "x"}))
    assert not same_tokenizer(one, model("swapped", {"a": 1, "b": 0}, "<end>"))
    assert not same_tokenizer(one, model("added", {"a": 0, "b": 1}, "<stop>"))


def test_without_a_tokenizer_file_the_sizes_of_the_vocabularies_decide(tmp_path: Path):
    for name, size in (("a", 8), ("b", 8), ("c", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": size}))
    assert same_tokenizer(tmp_path / "a", tmp_path / "b")
    assert not same_tokenizer(tmp_path / "a", tmp_path / "c")
