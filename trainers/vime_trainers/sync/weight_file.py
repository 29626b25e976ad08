"""Weights as one safetensors file that says which version it holds, and the checksum of each tensor."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from vime_agents.errors import ContractError
from vime_trainers.sync.checksums import DIGITS, checksum, tensor_bytes

_VERSION_KEY = "weight_version"
_CHECKSUMS_KEY = "checksums"
"""Of the tensors, one after the other, in the order of the file."""
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
    unknown = ["0" * DIGITS] * len(layout)
    text, num_bytes = _header(layout, version, unknown)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(text)
            found: list[str] = []
            expected = iter(layout.items())
            for name, tensor in weights:
                announced = next(expected, None)
                if announced != (name, (tuple(tensor.shape), tensor.dtype)):
                    got = f"{name} {tuple(tensor.shape)} {tensor.dtype}"
                    raise ContractError(f"{path}: got tensor {got}, expected {announced}")
                data = tensor_bytes(tensor)
                found.append(checksum(data))
                file.write(data)
            missing = next(expected, None)
            if missing is not None:
                raise ContractError(f"{path}: tensor {missing[0]} never came")
            file.seek(0)
            file.write(_header(layout, version, found)[0])  # as long as the one that it replaces
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return WeightFile(path=path.resolve(), version=version, num_tensors=len(layout), num_bytes=num_bytes)


def _header(layout: Layout, version: int, checksums: Sequence[str]) -> tuple[bytes, int]:
    """A file's first bytes, and how many its tensors take."""
    metadata = {"format": "pt", _VERSION_KEY: str(version), _CHECKSUMS_KEY: "".join(checksums)}
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, (shape, dtype) in layout.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    return len(text).to_bytes(8, "little") + text, offset


def check_tensors(path: Path) -> None:
    """Read every byte. Raises ValueError: a tensor is not what was written, or the file has no checksums."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
        known = header.pop("__metadata__", {}).get(_CHECKSUMS_KEY, "")
        if len(known) != DIGITS * len(header):
            raise ValueError(f"{path} holds no checksums of its {len(header)} tensors")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            for place, (name, entry) in enumerate(header.items()):
                start, end = (8 + size + offset for offset in entry["data_offsets"])
                with data[start:end] as piece:
                    found = checksum(piece)
                wanted = known[DIGITS * place :][:DIGITS]
                if found != wanted:
                    raise ValueError(f"{path}: tensor {name} is damaged: checksum {found}, not {wanted}")


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
