"""Write a safetensors file while its tensors stream in, so that no second copy of the model exists.

The layout is that of https://github.com/huggingface/safetensors#format: the header's length in 8 bytes, the
header as JSON, then the tensors' bytes end to end.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vime_agents.errors import ContractError

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write `tensors`, whose names and order must be those of `shapes`, all of one dtype.

    The file appears at `path` whole or not at all; `metadata` is kept in its header.

    Returns:
        Bytes written.

    Raises:
        ContractError: a tensor that `shapes` does not announce at this place.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            expected = iter(shapes.items())
            for name, tensor in tensors:
                announced = next(expected, None)
                if announced != (name, tuple(tensor.shape)) or tensor.dtype != dtype:
                    raise ContractError(
                        f"{path}: got tensor {name} {tuple(tensor.shape)} {tensor.dtype}, "
                        f"expected {announced} {dtype}"
                    )
                file.write(memoryview(tensor.detach().cpu().contiguous().view(torch.uint8).numpy()))
            missing = next(expected, None)
            if missing is not None:
                raise ContractError(f"{path}: tensor {missing[0]} never came")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return 8 + len(text) + offset
