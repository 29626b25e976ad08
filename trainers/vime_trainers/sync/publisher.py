"""Publishes new weights to running engines, exactly, and proves it.

pause -> start -> update -> finish(version) -> resume on every engine at once, then the probe. Requests in
flight stay in the engine over the pause; their remaining tokens carry the new version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_agents.errors import EngineError, WeightSyncError
from vime_agents.serving.engine_client import EngineClient
from vime_trainers.sync.probe import FP32_TOLERANCE, ProbeDifference, worst_difference
from vime_trainers.sync.weight_file import WeightFile

PHASES = ("pause", "start", "update", "finish", "resume", "probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What one sync did."""

    version: int
    num_engines: int
    num_bytes: int | None
    """Per engine; None where the transfer does not say."""
    seconds: Mapping[str, float]
    """By phase (`PHASES`): that of the slowest engine."""
    max_probe_logprob_diff: float
    """Nats: the largest difference of any engine at any position."""

    @property
    def total_s(self) -> float:
        """All phases."""
        return sum(self.seconds.values())

    @property
    def paused_s(self) -> float:
        """How long no token was sampled."""
        return self.total_s - self.seconds["probe"]


class WeightPublisher:
    """Holds the engines that sample from the trainer's weights."""

    def __init__(
        self,
        clients: Sequence[EngineClient],
        *,
        probe_tokens: Sequence[int],
        tolerance: float = FP32_TOLERANCE,
    ) -> None:
        """A publisher.

        Args:
            clients: One per engine; never a router: a sync has to reach every engine itself.
            probe_tokens: The fixed prompt whose log-probs are compared (`probe.probe_tokens`).
            tolerance: Largest difference in nats that counts as the same weights.
        """
        self._clients = tuple(clients)
        self._probe_tokens = tuple(probe_tokens)
        self._tolerance = tolerance

    async def publish(
        self,
        weights: WeightFile | Mapping[str, Any],
        version: int,
        *,
        trainer_logprobs: Sequence[float],
        send: Callable[[], Awaitable[None]] | None = None,
    ) -> SyncReport:
        """Put `weights` into every engine as `version`.

        Args:
            weights: A written file, or the update info of another transfer.
            version: The label of every token sampled from now on.
            trainer_logprobs: The trainer's log-probs of the probe tokens under these weights.
            send: Runs while the engines receive: the trainer's side of a broadcast.

        Raises:
            WeightSyncError: an engine failed, or its probe disagrees. Every engine that can still answer
                samples again, with whichever weights it holds.
        """
        if isinstance(weights, WeightFile) and weights.version != version:
            raise WeightSyncError(f"{weights.path} holds version {weights.version}, asked for was {version}")
        info = weights.update_info if isinstance(weights, WeightFile) else weights
        seconds: dict[str, float] = {}
        try:
            await self._phase(seconds, "pause", lambda c: c.pause("keep"))
            await self._phase(seconds, "start", lambda c: c.start_weight_update())
            await self._phase(seconds, "update", lambda c: c.update_weights(info), beside=send)
            await self._phase(seconds, "finish", lambda c: c.finish_weight_update(version))
            await self._phase(seconds, "resume", lambda c: c.resume())
        except BaseException:
            await asyncio.shield(self._recover())
            raise
        worst = await self._probe(seconds, trainer_logprobs)
        return SyncReport(
            version=version,
            num_engines=len(self._clients),
            num_bytes=weights.num_bytes if isinstance(weights, WeightFile) else None,
            seconds=seconds,
            max_probe_logprob_diff=worst,
        )

    async def probe(self, trainer_logprobs: Sequence[float]) -> float:
        """Compare every engine with the trainer; returns the largest difference in nats.

        Raises:
            WeightSyncError: it is above the tolerance; names engine, position and both values.
        """
        return await self._probe({}, trainer_logprobs)

    async def _probe(self, seconds: dict[str, float], trainer_logprobs: Sequence[float]) -> float:
        found: dict[str, ProbeDifference] = {}

        async def compare(client: EngineClient) -> None:
            engine = await client.prompt_logprobs(self._probe_tokens)
            found[client.url] = worst_difference(self._probe_tokens, engine, trainer_logprobs)

        await self._phase(seconds, "probe", compare)
        url, worst = max(found.items(), key=lambda item: item[1].value)
        if worst.value > self._tolerance:
            raise WeightSyncError(
                f"{url} does not hold the trainer's weights: at position {worst.position} of the probe "
                f"(token {worst.token_id}) it gives log-prob {worst.engine_logprob:.6f}, the trainer "
                f"{worst.trainer_logprob:.6f}: {worst.value:.6f} apart, tolerance {self._tolerance}"
            )
        return worst.value

    async def _phase(
        self,
        seconds: dict[str, float],
        name: str,
        call: Callable[[EngineClient], Awaitable[None]],
        *,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """One call on every engine at once; all have answered when it returns or raises."""
        started = time.monotonic()
        other = asyncio.ensure_future(beside()) if beside is not None else None
        results = await asyncio.gather(*(call(c) for c in self._clients), return_exceptions=True)
        if other is not None:
            if any(results):  # an engine refused: nobody may be left to receive what is being sent
                other.cancel()
            results += await asyncio.gather(other, return_exceptions=True)
        seconds[name] = time.monotonic() - started
        sources = [*(client.url for client in self._clients), "the trainer's send"]
        for source, result in zip(sources, results, strict=False):
            if isinstance(result, EngineError | TimeoutError):
                raise WeightSyncError(f"weight sync failed at `{name}`: {source}: {result}") from result
            if isinstance(result, BaseException):
                raise result

    async def _recover(self) -> None:
        """Close an update that is still open and let every engine go on; the first error is what counts."""

        async def recover(client: EngineClient) -> None:
            for call in (lambda: client.finish_weight_update(None), client.resume):
                try:
                    await call()
                except (EngineError, TimeoutError):
                    # No update was open, or the engine is dead: either way there is nothing left to undo.
                    continue

        await asyncio.gather(*(recover(client) for client in self._clients))
