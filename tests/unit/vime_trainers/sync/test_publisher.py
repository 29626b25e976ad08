"""The order of a sync, and that no failure leaves an engine paused; engines are fakes here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from vime_agents.errors import EngineError, WeightSyncError
from vime_agents.serving.engine_client import EngineClient
from vime_trainers.sync.publisher import PHASES, WeightPublisher
from vime_trainers.sync.weight_file import WeightFile

TRAINER = [float("nan"), -1.0, -2.0]
INFO = {"path": "p", "version": "5"}


class FakeEngine:
    """Keeps the calls; fails at the one it is told to fail at."""

    def __init__(self, url: str, *, fails_at: str = "", logprobs: Sequence[float] = TRAINER) -> None:
        self.url, self.fails_at, self.logprobs = url, fails_at, logprobs
        self.calls: list[Any] = []
        self.paused = False

    async def _called(self, name: str, *args: Any) -> None:
        self.calls.append((name, *args))
        await asyncio.sleep(0)
        if name == self.fails_at:
            self.fails_at = ""
            raise EngineError(f"{self.url} is out of memory")

    async def pause(self, mode: str) -> None:
        self.paused = True
        await self._called("pause", mode)

    async def start_weight_update(self) -> None:
        await self._called("start")

    async def update_weights(self, info: dict[str, str]) -> None:
        await self._called("update", info)

    async def finish_weight_update(self, version: int | None) -> None:
        await self._called("finish", version)

    async def resume(self) -> None:
        await self._called("resume")
        self.paused = False

    async def prompt_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        await self._called("probe", tuple(token_ids))
        return list(self.logprobs)


def publisher(*engines: FakeEngine) -> WeightPublisher:
    return WeightPublisher(cast("list[EngineClient]", engines), probe_tokens=(7, 8, 9))


async def test_each_engine_sees_the_calls_of_a_sync_in_their_order():
    """Plan 78."""
    engines = [FakeEngine("http://a"), FakeEngine("http://b")]
    report = await publisher(*engines).publish(INFO, 5, trainer_logprobs=TRAINER)
    expected = [
        ("pause", "keep"),
        ("start",),
        ("update", INFO),
        ("finish", 5),
        ("resume",),
        ("probe", (7, 8, 9)),
    ]
    assert [e.calls for e in engines] == [expected, expected]
    assert tuple(report.seconds) == PHASES
    assert (report.version, report.num_engines, report.max_probe_logprob_diff) == (5, 2, 0.0)


@pytest.mark.parametrize("phase", ["pause", "start", "update", "finish", "resume"])
async def test_a_failure_in_any_phase_leaves_no_engine_paused(phase: str):
    engines = [FakeEngine("http://a"), FakeEngine("http://b", fails_at=phase)]
    with pytest.raises(WeightSyncError, match=f"failed at `{phase}`: http://b: http://b is out of memory"):
        await publisher(*engines).publish(INFO, 5, trainer_logprobs=TRAINER)
    assert not any(e.paused for e in engines)


async def test_cancellation_leaves_no_engine_paused():
    engine = FakeEngine("http://a")

    async def forever() -> None:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(publisher(engine).publish(INFO, 5, trainer_logprobs=TRAINER, send=forever))
    while ("update", INFO) not in engine.calls:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not engine.paused


async def test_the_probe_names_engine_position_and_both_values():
    engines = [FakeEngine("http://a"), FakeEngine("http://b", logprobs=[float("nan"), -1.0, -2.5])]
    said = r"http://b does not hold.*position 2 .*\(token 9\).*-2\.500000.*-2\.000000.*0\.500000 apart"
    with pytest.raises(WeightSyncError, match=said):
        await publisher(*engines).publish(INFO, 5, trainer_logprobs=TRAINER)
    assert not any(e.paused for e in engines)


async def test_a_log_prob_that_is_not_a_number_is_no_agreement():
    engine = FakeEngine("http://a", logprobs=[float("nan")] * 3)
    with pytest.raises(WeightSyncError, match="does not hold the trainer's weights"):
        await publisher(engine).probe(TRAINER)


async def test_the_trainer_sends_while_engines_receive():
    engine = FakeEngine("http://a")
    seen: list[Any] = []

    async def send() -> None:
        seen.append(engine.calls[-1][0])

    await publisher(engine).publish(INFO, 5, trainer_logprobs=TRAINER, send=send)
    assert seen in (["start"], ["update"])


async def test_nobody_sends_to_engines_that_refused():
    async def forever() -> None:
        await asyncio.Event().wait()

    engine = FakeEngine("http://a", fails_at="update")
    with pytest.raises(WeightSyncError, match="failed at `update`: http://a"):
        await publisher(engine).publish(INFO, 5, trainer_logprobs=TRAINER, send=forever)
    assert not engine.paused


async def test_a_file_of_another_version_is_refused_before_any_engine_is_paused(tmp_path: Path):
    engine = FakeEngine("http://a")
    file = WeightFile(path=tmp_path / "w", version=4, num_tensors=1, num_bytes=4)
    with pytest.raises(WeightSyncError, match="holds version 4, asked for was 5"):
        await publisher(engine).publish(file, 5, trainer_logprobs=TRAINER)
    assert engine.calls == []
