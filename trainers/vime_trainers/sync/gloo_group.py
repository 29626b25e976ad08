"""A gloo group beside the default one, for a trainer and engines that share no other group."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from vime_trainers.sync.checksums import DIGITS, checksum, tensor_bytes

TIMEOUT_S = 300.0


def join_group(
    address: str, port: int, *, rank: int, world_size: int, timeout_s: float = TIMEOUT_S
) -> ProcessGroupGloo:
    """Join by TCP; blocks until `world_size` members are there. Rank 0 listens on `port`.

    `torch.distributed.init_process_group` is not used: a process has one default group, and both sides
    have theirs already.
    """
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(address, port, world_size, is_master=rank == 0, timeout=timeout)
    return ProcessGroupGloo(PrefixStore("weight-sync", store), rank, world_size, timeout)


def broadcast_bytes(group: ProcessGroupGloo, tensor: torch.Tensor) -> None:
    """Broadcast a contiguous tensor on the CPU from rank 0, as bytes: gloo does not know every dtype."""
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor.reshape(-1).view(torch.uint8)], options).wait()


def send_tensor(group: ProcessGroupGloo, tensor: torch.Tensor) -> None:
    """Rank 0's part: a tensor on any device, and its checksum after it."""
    tensor = tensor.detach().cpu().contiguous()
    broadcast_bytes(group, tensor)
    digits = checksum(tensor_bytes(tensor)).encode()
    broadcast_bytes(group, torch.frombuffer(bytearray(digits), dtype=torch.uint8))


def receive_tensor(group: ProcessGroupGloo, tensor: torch.Tensor) -> bool:
    """Another member's part: fills `tensor`, and says whether it is what rank 0 sent."""
    broadcast_bytes(group, tensor)
    digits = torch.empty(DIGITS, dtype=torch.uint8)
    broadcast_bytes(group, digits)
    return checksum(tensor_bytes(tensor)).encode() == bytes(digits.tolist())
