"""A Ray actor that owns one vLLM server process: the server ends with the actor."""

from __future__ import annotations

import ray

from vime_agents.serving.server_log import explain
from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig


class EngineActor:
    """Starts, watches and stops one server on the node where Ray put it."""

    def __init__(self, config: VllmServerConfig) -> None:
        self.server = VllmServer(config)

    async def start(self) -> tuple[str, float]:
        """Start the server; its URL and the seconds it took. Raises ServingError."""
        await self.server.start()
        return self.server.url, self.server.startup_s or 0.0

    async def death(self) -> str | None:
        """Why the server died, out of its log; None while it runs."""
        return None if self.server.alive() else explain(self.server.log_path)

    async def stop(self) -> None:
        """End the server."""
        await self.server.stop()


def create_engine(config: VllmServerConfig, *, num_gpus: int) -> ray.actor.ActorHandle:
    """An engine actor with `num_gpus` accelerators (0: none)."""
    remote = ray.remote(EngineActor)
    return remote.options(num_cpus=1, num_gpus=num_gpus, max_concurrency=8).remote(config)
