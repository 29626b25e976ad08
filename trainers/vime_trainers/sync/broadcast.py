"""The trainer's side of the `gloo` transfer: weights to engines on other hosts, without a shared disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch.distributed import ProcessGroupGloo

from vime_agents.serving.engine_client import EngineClient
from vime_trainers.sync.gloo_group import broadcast_bytes, join_group


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
        world_size = 1 + len(clients) * workers_per_engine
        common = {"master_address": address, "master_port": port, "world_size": world_size}
        # Every member blocks until the last one is there: all have to join at once.
        joining = asyncio.create_task(
            asyncio.to_thread(join_group, address, port, rank=0, world_size=world_size)
        )
        await asyncio.gather(
            *(
                client.init_weight_transfer({**common, "rank_offset": 1 + at * workers_per_engine})
                for at, client in enumerate(clients)
            )
        )
        return cls(await joining)

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
            broadcast_bytes(self._group, tensor.detach().to("cpu").contiguous())
