"""When a checkpoint of a run counts, and what happens to one that is being written."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from vime_agents.config import TrainConfig
from vime_agents.errors import CheckpointError, ServingError
from vime_agents.storage.run_directory import RunDirectory
from vime_trainers.ray import checkpoints
from vime_trainers.ray.checkpoints import Checkpoints


class SlowSaver:
    """Writes what it holds at once, and is done when the test says so."""

    def __init__(self) -> None:
        self.weights = 0
        self.may_end = threading.Event()
        self.error: Exception | None = None
        self.num_open = self.max_open = 0

    def save(self, folder: Path) -> None:
        self.begin_save(folder)
        self.may_end.wait()
        self.finish_saves(wait=True)

    def begin_save(self, folder: Path) -> None:
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        (folder / "weights").write_text(str(self.weights))

    def finish_saves(self, *, wait: bool) -> bool:
        if self.error is not None:
            raise self.error
        if not self.may_end.is_set():
            return False
        self.num_open -= 1
        return True


class Counter:
    """Has a state."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_POLL_S", 0.001)
    config = TrainConfig(env="E", hf_checkpoint="m", run_dir=str(tmp_path / "run"))
    with RunDirectory.create_or_resume(config.run_dir, config) as run:
        yield run


@pytest.fixture
def saver():
    return SlowSaver()


async def test_the_run_goes_on_and_the_checkpoint_is_of_when_it_was_asked_for(run, saver):
    counter = Counter()
    async with Checkpoints(run, saver, background=True, keep=0) as checkpoints:
        saver.weights = counter.value = 4
        await checkpoints.save(4, {"counter": counter})
        saver.weights = counter.value = 5
        checkpoints.check()
        assert run.checkpointed() == []
        saver.may_end.set()
    folder = run.checkpoint(4)
    assert (folder / "weights").read_text() == "4"
    assert json.loads((folder / "run_state.json").read_text()) == {"counter": {"value": 4}}
    (event,) = run.events("checkpoint")
    assert event["update"] == 4
    assert 0 <= event["seconds/checkpoint"] <= event["written_after_s"]


async def test_a_checkpoint_counts_as_soon_as_it_is_written(run, saver):
    async with Checkpoints(run, saver, background=True, keep=0) as checkpoints:
        await checkpoints.save(1, {})
        saver.may_end.set()
        async with asyncio.timeout(10):
            while not run.checkpointed():
                await asyncio.sleep(0.001)


async def test_two_are_never_written_at_once_and_old_ones_go_when_new_ones_count(run, saver):
    async with Checkpoints(run, saver, background=True, keep=1) as checkpoints:
        await checkpoints.save(1, {})
        second = asyncio.create_task(checkpoints.save(2, {}))
        await asyncio.sleep(0.02)
        assert not second.done()
        saver.may_end.set()
        await second
    assert saver.max_open == 1
    assert run.checkpointed() == [2]
    assert [e["update"] for e in run.events("checkpoint")] == [1, 2]


@pytest.mark.parametrize("background", [False, True])
async def test_a_run_that_is_stopped_waits_for_the_checkpoint_that_it_began(run, saver, background):
    async def train() -> None:
        async with Checkpoints(run, saver, background=background, keep=0) as checkpoints:
            await checkpoints.save(1, {})
            await asyncio.sleep(60)

    training = asyncio.create_task(train())
    while not saver.num_open:
        await asyncio.sleep(0.001)
    training.cancel()
    await asyncio.sleep(0.02)
    assert not training.done()
    saver.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert run.checkpointed() == [1]


async def fail(run: RunDirectory, saver: SlowSaver, at: str) -> None:
    async with Checkpoints(run, saver, background=True, keep=0) as checkpoints:
        await checkpoints.save(1, {})
        saver.error = CheckpointError("cannot write a checkpoint to FOLDER: disk full")
        if at == "next save":
            await checkpoints.save(2, {})
        while at == "check":
            checkpoints.check()
            await asyncio.sleep(0.001)
        if at == "other error":
            raise ServingError("an engine died")


@pytest.mark.parametrize("at", ["check", "next save", "end"])
async def test_a_write_that_fails_ends_the_run(run, saver, at):
    with pytest.raises(CheckpointError, match="FOLDER: disk full") as caught:
        await fail(run, saver, at)
    assert not hasattr(caught.value, "__notes__")
    assert run.checkpointed() == []


async def test_what_ended_the_run_before_is_what_is_said(run, saver):
    with pytest.raises(ServingError, match="an engine died") as caught:
        await fail(run, saver, "other error")
    assert caught.value.__notes__ == [
        "the checkpoint that was being written is lost: cannot write a checkpoint to FOLDER: disk full"
    ]


async def test_a_save_that_cannot_begin_is_raised_at_once(run, saver):
    checkpoints = Checkpoints(run, saver, background=True, keep=0)
    (run.checkpoints / "update-000001").mkdir()
    with pytest.raises(CheckpointError, match="has a checkpoint already"):
        await checkpoints.save(1, {})
