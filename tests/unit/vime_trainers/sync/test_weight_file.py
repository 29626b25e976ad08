"""Written weights come back bit by bit, and say which version they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vime_agents.errors import ContractError
from vime_trainers.sync.weight_file import (
    WeightFile,
    check_tensors,
    check_version,
    file_shapes,
    iterate_file,
    layout_of,
    write_weight_file,
)

WEIGHTS = {
    "a": torch.tensor([[1.0, -0.0], [float("inf"), 3.14159274]]),
    "b": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
}


def write(path: Path, weights: dict[str, torch.Tensor], version: int) -> WeightFile:
    return write_weight_file(path, layout_of(weights), weights.items(), version=version)


def test_the_official_library_reads_it(tmp_path: Path):
    read = load_file(write(tmp_path / "w.safetensors", WEIGHTS, 3).path)
    assert read.keys() == WEIGHTS.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in WEIGHTS.items())


def test_every_bit_and_dtype_comes_back(tmp_path: Path):
    written = write(tmp_path / "w.safetensors", WEIGHTS, 3)
    read = dict(iterate_file(written.path))
    assert read.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name].view(torch.uint8), tensor.view(torch.uint8))
    assert file_shapes(written.path) == {"a": (2, 2), "b": (2, 3)}
    assert (written.num_tensors, written.num_bytes) == (2, 4 * 4 + 6 * 2)


def test_a_view_is_written_as_what_it_shows(tmp_path: Path):
    source = torch.arange(12.0).reshape(3, 4)
    written = write(tmp_path / "w", {"t": source.t(), "row": source[1]}, 0)
    read = dict(iterate_file(written.path))
    assert torch.equal(read["t"], source.t())
    assert torch.equal(read["row"], source[1])


def test_a_parameter_is_written_without_its_graph(tmp_path: Path):
    parameter = torch.nn.Parameter(torch.ones(2))
    written = write(tmp_path / "w", {"p": parameter}, 0)
    assert torch.equal(dict(iterate_file(written.path))["p"], torch.ones(2))


def test_another_version_is_stale(tmp_path: Path):
    written = write(tmp_path / "w", WEIGHTS, 3)
    check_version(written.path, "3")
    with pytest.raises(ValueError, match="holds weight version 3, not 4: a stale file"):
        check_version(written.path, "4")


def test_every_bit_that_flips_is_found_with_its_tensor(tmp_path: Path):
    """Plan 77."""
    path = write(tmp_path / "w", WEIGHTS, 3).path
    whole = path.read_bytes()
    check_tensors(path)
    first = len(whole) - (4 * 4 + 6 * 2)
    for place in range(first, len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            name = "a" if place < first + 16 else "b"
            with pytest.raises(ValueError, match=f"tensor {name} is damaged: checksum [0-9a-f]{{16}}, not"):
                check_tensors(path)


def test_tensors_that_were_swapped_are_found(tmp_path: Path):
    same_shape = {"a": torch.zeros(3), "b": torch.ones(3)}
    path = write(tmp_path / "w", same_shape, 3).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-24] + whole[-12:] + whole[-24:-12])
    with pytest.raises(ValueError, match="tensor a is damaged"):
        check_tensors(path)


def test_a_file_of_another_writer_has_no_checksums(tmp_path: Path):
    save_file(WEIGHTS, tmp_path / "w", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="holds no checksums of its 2 tensors"):
        check_tensors(tmp_path / "w")


def test_a_failed_write_keeps_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "w.safetensors"
    write(path, WEIGHTS, 1)
    layout = layout_of(WEIGHTS)
    for tensors, problem in (
        ([("a", WEIGHTS["a"])], "tensor b never came"),
        ([("b", WEIGHTS["b"])], r"got tensor b \(2, 3\).*expected \('a'"),
        ([("a", WEIGHTS["a"].half())], "float16, expected .*float32"),
        ([*WEIGHTS.items(), ("c", WEIGHTS["a"])], "got tensor c .*expected None"),
    ):
        with pytest.raises(ContractError, match=problem):
            write_weight_file(path, layout, tensors, version=2)
    check_version(path, "1")
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_the_update_info_names_file_and_version(tmp_path: Path):
    written = write(tmp_path / "sub" / "w", WEIGHTS, 12)
    assert written.update_info == {"path": str((tmp_path / "sub" / "w").resolve()), "version": "12"}
