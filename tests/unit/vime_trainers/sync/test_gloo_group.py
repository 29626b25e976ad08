"""Bytes broadcast between members of a group arrive as they were."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import torch

from vime_trainers.sync.broadcast import WeightBroadcast
from vime_trainers.sync.checksums import checksum, tensor_bytes
from vime_trainers.sync.gloo_group import broadcast_bytes, join_group, receive_tensor, send_tensor


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_every_member_gets_the_bits_of_rank_0():
    sent = [
        torch.tensor([[1.0, -0.0], [float("inf"), 0.1]], dtype=torch.bfloat16),
        torch.arange(5.0),
        torch.tensor(3.5),
    ]
    port = free_port()

    def member(rank: int) -> list[torch.Tensor]:
        group = join_group("127.0.0.1", port, rank=rank, world_size=3, timeout_s=30)
        tensors = [t.clone() if rank == 0 else torch.zeros_like(t) for t in sent]
        for tensor in tensors:
            broadcast_bytes(group, tensor)
        return tensors

    with ThreadPoolExecutor(3) as pool:
        for received in pool.map(member, range(3)):
            for a, b in zip(sent, received, strict=True):
                assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def test_a_bit_that_flips_on_the_way_is_found():
    """Plan 77. The second tensor is sent with one bit of another than its checksum is of."""
    sent = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    flipped = sent.clone()
    flipped.view(torch.uint8)[1, 2] ^= 1
    port = free_port()

    def member(rank: int) -> list[bool]:
        group = join_group("127.0.0.1", port, rank=rank, world_size=2, timeout_s=30)
        if rank:
            return [receive_tensor(group, torch.zeros_like(sent)) for _ in range(3)]
        send_tensor(group, sent)
        broadcast_bytes(group, flipped)
        broadcast_bytes(group, torch.tensor(list(checksum(tensor_bytes(sent)).encode()), dtype=torch.uint8))
        send_tensor(group, flipped)
        return []

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(member, range(2)))[1] == [True, False, True]


def test_the_announcement_is_in_the_order_of_the_weights():
    weights = [("b", torch.zeros(2, 3, dtype=torch.bfloat16)), ("a", torch.zeros(4))]
    assert WeightBroadcast.update_info(weights) == {
        "names": ["b", "a"],
        "dtype_names": ["bfloat16", "float32"],
        "shapes": [[2, 3], [4]],
    }
