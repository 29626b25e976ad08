"""Did every bit of a tensor arrive? XXH3 in 64 bits, which costs less than reading the bytes does.

It finds what goes wrong by itself (a bit that flips, a page that was not written), not what somebody forges.
"""

from __future__ import annotations

import torch
import xxhash

DIGITS = 16
"""Of a checksum in hexadecimal."""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Its bytes in their order; without a copy of what is contiguous and on the CPU."""
    return memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


def checksum(data: memoryview) -> str:
    """`DIGITS` hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data)
