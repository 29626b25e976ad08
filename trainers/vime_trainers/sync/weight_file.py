"""Weights as one safetensors file that says which version it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

_VERSION_KEY = "weight_version"


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


def write_weight_file(path: Path, weights: Iterable[tuple[str, torch.Tensor]], *, version: int) -> WeightFile:
    """Write all tensors; a reader of `path` sees the old file or the whole new one.

    Args:
        path: In /dev/shm when trainer and engine share a host (no disk, no copy on reading).
        weights: Hugging Face name and tensor, on any device.
        version: Written into the file, so that a stale one is refused.
    """
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata={_VERSION_KEY: str(version)})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return WeightFile(
        path=path.resolve(),
        version=version,
        num_tensors=len(tensors),
        num_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
    )


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
