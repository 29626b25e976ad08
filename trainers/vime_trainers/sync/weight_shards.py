"""Weights as a Hugging Face checkpoint: one safetensors file, or several and an index of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import torch

from vime_agents.errors import CheckpointError, ContractError
from vime_agents.storage.json_lines import sync_path
from vime_trainers.sync.weight_file import Layout, write_weight_file

INDEX = "model.safetensors.index.json"


def shards_of(layout: Layout, shard_size: int) -> list[Layout]:
    """Cut a layout, in its order, into files of at most `shard_size` bytes; a larger tensor is alone."""
    shards: list[dict[str, tuple[tuple[int, ...], torch.dtype]]] = [{}]
    used = 0
    for name, (shape, dtype) in layout.items():
        size = math.prod(shape) * dtype.itemsize
        if shards[-1] and used + size > shard_size:
            shards.append({})
            used = 0
        shards[-1][name] = (shape, dtype)
        used += size
    return list(shards)


def write_weight_shards(
    folder: Path,
    layout: Layout,
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    version: int,
    shard_size: int,
) -> int:
    """Write tensors while they stream in: one of them is held at a time, whatever the size of the files.

    They are on the disk when this returns. If there are several, the index says which tensor is in which.

    Args:
        folder: exists.
        layout: What `weights` will yield, in that order.
        weights: Hugging Face name and tensor, on any device.
        version: Written into each file.
        shard_size: Most bytes of a file's tensors.

    Returns:
        Bytes of all tensors.

    Raises:
        CheckpointError: a file cannot be written.
        ContractError: a tensor that `layout` does not announce at this place, or one that never came.
    """
    shards, stream, num_bytes = shards_of(layout, shard_size), iter(weights), 0
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    try:
        for name, shard in zip(names, shards, strict=True):
            written = write_weight_file(folder / name, shard, islice(stream, len(shard)), version=version)
            num_bytes += written.num_bytes
            sync_path(written.path)
        for name, _ in stream:
            raise ContractError(f"{folder}: got tensor {name}, which the layout does not have")
        if len(shards) > 1:
            files = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
            index = {"metadata": {"total_size": num_bytes}, "weight_map": files}
            (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
            sync_path(folder / INDEX)
    except OSError as error:
        raise CheckpointError(f"cannot write weights to {folder}: {error}") from error
    return num_bytes
