"""Weights as one safetensors file that says which version it holds."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from vime_agents.errors import ContractError

_VERSION_KEY = "weight_version"
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and type of every tensor, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """A written file."""

    path: Path
    version: int
    num_tensors: int
    num_bytes: int
    """Of the tensors, without the header."""

    @property
    def update_info(self) -> dict[str, str]:
        """What the engine's `file` transfer is told."""
        return {"path": str(self.path), "version": str(self.version)}


def layout_of(weights: Mapping[str, torch.Tensor]) -> Layout:
    """Of tensors that are all there already."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}


def write_weight_file(
    path: Path, layout: Layout, weights: Iterable[tuple[str, torch.Tensor]], *, version: int
) -> WeightFile:
    """Write tensors while they stream in, so that no second copy of the model exists.

    A reader of `path` sees the old file or the whole new one. Format:
    https://github.com/huggingface/safetensors#format (the header's length in 8 bytes, the header as JSON, the
    tensors' bytes end to end).

    Args:
        path: In /dev/shm when trainer and engine share a host (no disk, no copy on reading).
        layout: What `weights` will yield, in that order.
        weights: Hugging Face name and tensor, on any device.
        version: Written into the file, so that a stale one is refused.

    Raises:
        ContractError: a tensor that `layout` does not announce at this place, or one that never came.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", _VERSION_KEY: str(version)}}
    offset = 0
    for name, (shape, dtype) in layout.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            expected = iter(layout.items())
            for name, tensor in weights:
                announced = next(expected, None)
                if announced != (name, (tuple(tensor.shape), tensor.dtype)):
                    got = f"{name} {tuple(tensor.shape)} {tensor.dtype}"
                    raise ContractError(f"{path}: got tensor {got}, expected {announced}")
                flat = tensor.detach().cpu().contiguous().flatten()
                file.write(memoryview(flat.view(torch.uint8).numpy()))
            missing = next(expected, None)
            if missing is not None:
                raise ContractError(f"{path}: tensor {missing[0]} never came")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return WeightFile(path=path.resolve(), version=version, num_tensors=len(layout), num_bytes=offset)


def check_version(path: Path, version: str) -> None:
    """Raises ValueError when the file says that it holds another version, or says nothing."""
    with safe_open(path, framework="pt") as file:
        held = (file.metadata() or {}).get(_VERSION_KEY)
    if held != version:
        raise ValueError(f"{path} holds weight version {held}, not {version}: a stale file")


def file_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape, from the header."""
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def iterate_file(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(Name, tensor), one at a time."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)
