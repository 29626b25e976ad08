"""Weights in several files are what they are in one, for the libraries that read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config

from vime_agents.errors import CheckpointError, ContractError
from vime_trainers.sync.weight_file import layout_of
from vime_trainers.sync.weight_shards import INDEX, shards_of, write_weight_shards

WEIGHTS = {
    "a": torch.ones(4),
    "b": torch.ones(5, dtype=torch.bfloat16),
    "large": torch.ones(10, 3),
    "c": torch.ones(1),
    "d": torch.ones(2, 2),
}
"""16, 10, 120, 4 and 16 bytes."""


def write(folder: Path, shard_size: int, weights: dict[str, torch.Tensor]) -> int:
    folder.mkdir(exist_ok=True)
    layout = layout_of(weights)
    return write_weight_shards(folder, layout, iter(weights.items()), version=3, shard_size=shard_size)


@pytest.mark.parametrize("shard_size", [1, 16, 26, 100, 125, 1000])
def test_files_are_cut_where_they_would_be_too_large_and_a_large_tensor_is_alone(shard_size):
    found = [set(shard) for shard in shards_of(layout_of(WEIGHTS), shard_size)]
    if shard_size == 26:
        assert found == [{"a", "b"}, {"large"}, {"c", "d"}]
    assert sum(len(shard) for shard in found) == len(WEIGHTS)
    sizes = {name: tensor.nbytes for name, tensor in WEIGHTS.items()}
    assert all(len(shard) == 1 or sum(sizes[n] for n in shard) <= shard_size for shard in found)


def test_one_file_has_no_index_and_the_usual_name(tmp_path):
    assert write(tmp_path, 1000, WEIGHTS) == 166
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_index_says_where_each_tensor_is(tmp_path):
    write(tmp_path, 26, WEIGHTS)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 166}
    for name, tensor in WEIGHTS.items():
        assert torch.equal(load_file(tmp_path / index["weight_map"][name])[name], tensor)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
        INDEX,
    ]


def test_transformers_reads_the_same_model_from_several_files_as_from_one(tmp_path):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    read = []
    for name, size in (("one", 10**9), ("several", 12_000)):
        write(tmp_path / name, size, weights)
        config.save_pretrained(tmp_path / name)
        loaded, report = AutoModelForCausalLM.from_pretrained(
            tmp_path / name, dtype=torch.float32, output_loading_info=True
        )
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        read.append(loaded.state_dict())
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 3
    assert all(torch.equal(read[0][n], w) and torch.equal(read[1][n], w) for n, w in weights.items())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write weights to .*file"):
        write_weight_shards(tmp_path / "file", layout_of(WEIGHTS), WEIGHTS.items(), version=0, shard_size=100)


def test_a_tensor_too_many_or_too_few_is_an_error(tmp_path):
    layout = layout_of({"a": WEIGHTS["a"], "c": WEIGHTS["c"]})
    for names, problem in ((["a"], "tensor c never came"), (["a", "c", "d"], "got tensor d, which")):
        stream = ((name, WEIGHTS[name]) for name in names)
        with pytest.raises(ContractError, match=problem):
            write_weight_shards(tmp_path, layout, stream, version=0, shard_size=16)
