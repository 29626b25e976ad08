"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """`5GB` -> 5 * 10**9, as Hugging Face's libraries count.

    Raises:
        ValueError: not a number above 0 and B, KB, MB, GB or TB.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise ValueError(f"must be a size such as 5GB or 500MB, got {text!r}")
    return size
