"""The trainer's side of the `gloo` transfer: weights to engines on other hosts, without a shared disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch.distributed import ProcessGroupGloo

from vime_agents.serving.engine_client import EngineClient
from vime_trainers.sync.gloo_group import join_group, send_tensor

T = TypeVar("T")


async def form_group(
    clients: Sequence[EngineClient],
    join: Callable[[int], Awaitable[T]],
    place: Mapping[str, Any],
    *,
    workers_per_engine: int = 1,
) -> T:
    """Let the trainer (rank 0) and every worker of every engine meet; returns what `join` does.

    Args:
        clients: One per engine.
        join: Makes the trainer join a group of the given size; runs while the engines join.
        place: `master_address` and `master_port` of the trainer, as the engines reach it.
        workers_per_engine: Tensor times pipeline parallel size.
    """
    world_size = 1 + len(clients) * workers_per_engine
    joined, *_ = await asyncio.gather(
        join(world_size),
        *(
            client.init_weight_transfer(
                {**place, "world_size": world_size, "rank_offset": 1 + at * workers_per_engine}
            )
            for at, client in enumerate(clients)
        ),
    )
    return joined


class WeightBroadcast:
    """Rank 0 of a group with every worker of every engine.

    ```python
    broadcast = await WeightBroadcast.open(clients, address="10.0.0.1", port=29500)
    await publisher.publish(
        broadcast.update_info(weights), version, trainer_logprobs=..., send=lambda: broadcast.send(weights)
    )
    ```
    """

    def __init__(self, group: ProcessGroupGloo) -> None:
        self._group = group

    @classmethod
    async def open(
        cls, clients: Sequence[EngineClient], *, address: str, port: int, workers_per_engine: int = 1
    ) -> Self:
        """Form the group; the engines were started with `weight_transfer="gloo"`.

        Args:
            clients: One per engine.
            address: Of this host, as the engines reach it.
            port: A free one of this host.
            workers_per_engine: Tensor times pipeline parallel size.
        """

        async def join(world_size: int) -> ProcessGroupGloo:
            return await asyncio.to_thread(join_group, address, port, rank=0, world_size=world_size)

        place = {"master_address": address, "master_port": port}
        return cls(await form_group(clients, join, place, workers_per_engine=workers_per_engine))

    @staticmethod
    def update_info(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        """What the engines are told: names, dtypes and shapes in the order in which they will come."""
        names, dtypes, shapes = [], [], []
        for name, tensor in weights:
            names.append(name)
            dtypes.append(str(tensor.dtype).removeprefix("torch."))
            shapes.append(list(tensor.shape))
        return {"names": names, "dtype_names": dtypes, "shapes": shapes}

    async def send(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Broadcast in that order."""
        await asyncio.to_thread(self._send, weights)

    def _send(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in weights:
            send_tensor(self._group, tensor)
