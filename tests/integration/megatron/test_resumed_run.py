"""A run that is killed while it writes a checkpoint goes on from the one before, to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.commands import events
from tests.integration.megatron import oracle
from tests.integration.megatron.ranks import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

MEASURED = ("seconds/", "sync_seconds/", "time", "tokens_per_s", "peak_memory_gb", "forward_", "optimizer_s")
"""Metrics that are of the machine, not of what was learned."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    oracle.make_model("qwen3", tmp_path / "model")
    started = []

    def run(name: str, *more: str, stuck: int = 0) -> subprocess.Popen[bytes]:
        flags = [
            *("--env", "tests.e2e.letters:Letters", "--hf-checkpoint", str(tmp_path / "model")),
            *("--run-dir", str(tmp_path / name), "--num-rollout", "4", "--save-interval", "1"),
            *("--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-context-len", "64"),
            *("--rollout-max-response-len", "12", "--keep-checkpoints", "0", "--lr", "1e-2"),
            *("--num-steps-per-rollout", "2", "--old-logprobs", "recompute", "--lr-decay-style", "cosine"),
            *("--min-lr", "1e-3"),
            *("--kl-reference", "ref", "--kl-loss-coef", "0.1", "--entropy-coef", "0.01", *more),
        ]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "trainers")])}
        worker = str(Path(__file__).with_name("run_worker.py"))
        with (tmp_path / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, worker, str(tmp_path / f"{name}.pt"), str(stuck), *flags],
                env=env | {"OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        process.wait()


def learned(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in event.items() if not name.startswith(MEASURED)}
        for event in events(run_dir, "train")
    ]


def test_a_run_killed_while_it_writes_resumes_from_the_checkpoint_before_to_the_same_bits(start, tmp_path):
    whole, killed = start("whole"), start("killed", "--async-save", stuck=3)
    run_dir = tmp_path / "killed"
    written = "checkpoints/.update-000003.*/*.distcp"
    # The fourth update follows while the third is being written, by a process that may start after its end.
    while len(events(run_dir, "train")) < 4 or not list(run_dir.glob(written)):
        assert killed.poll() is None, (tmp_path / "killed.log").read_text()[-3000:]
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert sorted(p.name for p in (run_dir / "checkpoints").glob("update-*")) == [
        "update-000001",
        "update-000002",
    ]
    resumed = start("killed", "--async-save")
    assert whole.wait(200) == 0, (tmp_path / "whole.log").read_text()[-3000:]
    assert resumed.wait(200) == 0, (tmp_path / "killed.log").read_text()[-3000:]

    assert [event["update"] for event in events(run_dir, "start")] == [0, 2]
    assert sorted(p.name for p in (run_dir / "checkpoints").iterdir()) == [
        f"update-{n:06d}" for n in (1, 2, 3, 4)
    ]
    first, second = learned(tmp_path / "whole"), learned(run_dir)
    assert first == second
    assert len(first) == 4
    for event in first:
        assert event["num_optimizer_steps"] == 2
        assert event["loss"] > event["pg_loss"] - 0.01 * event["entropy"]  # the reference has a part in it
    state, other = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "killed"))
    assert state.keys() == other.keys()
    assert any(name.endswith("exp_avg_sq") for name in state)
    assert all(torch.equal(value, other[name]) for name, value in state.items())
