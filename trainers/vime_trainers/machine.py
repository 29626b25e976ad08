"""What the hardware under a trainer can do, and what a trainer takes of it."""

from __future__ import annotations

import resource

import torch

PEAK_TFLOPS = {
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
    "H20": 148.0,
    "B200": 2250.0,
    "L40S": 362.0,
    "A10": 125.0,
    "RTX 4090": 165.0,
}
"""Dense bfloat16 operations a second, 10^12, by a word of the device's name: the vendor's data sheets."""


def peak_tflops(given: float | None = None) -> float | None:
    """Of one rank's device: what the user says, or the table; None where neither knows."""
    if given is not None:
        return given
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    # The longest word first: an H200 is no H20.
    words = sorted((word for word in PEAK_TFLOPS if word in name), key=len)
    return PEAK_TFLOPS[words[-1]] if words else None


def peak_memory_bytes() -> int:
    """The most that this process held: of its device, or of the host where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
