"""A process group beside the default one, for trainer and engines that share no other group."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup


def join_group(address: str, port: int, *, rank: int, world_size: int) -> ProcessGroup:
    """Join a gloo group by TCP; blocks until `world_size` members are there. Rank 0 listens on `port`."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    group = stateless_init_torch_distributed_process_group(address, port, rank, world_size, "gloo")
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"vLLM returned a {type(group).__name__} where a ProcessGroup was expected")
    return group


def broadcast_bytes(group: ProcessGroup, tensor: torch.Tensor) -> None:
    """Broadcast a contiguous tensor from rank 0, as bytes: gloo does not know every dtype."""
    options = torch.distributed.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor.view(-1).view(torch.uint8)], options).wait()
