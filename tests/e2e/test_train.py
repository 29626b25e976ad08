"""A training run survives what happens to it: kills, Ctrl-C, a dead engine; and leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.e2e.commands import Command, events, nothing_survives
from tests.unit.docs.training_page import undocumented
from vime_agents.config.train import TrainConfig
from vime_agents.storage.episodes import read_episodes
from vime_trainers.models.tiny import ensure_tiny_qwen3
from vime_trainers.ray.schedule import rollout_requests, training_tasks
from vime_trainers.ray.snapshots import Snapshots

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_ROLLOUT = 40
AGAINST_SNAPSHOTS = [
    *("--env", "tests.e2e.letters:LetterDuel"),
    *("--agents", "second=snapshots"),
    *("--snapshot-interval", "1"),
    *("--num-snapshots", "3"),
    *("--n-eval-tasks", "256"),
]
START_S = 240.0


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run that any machine can do, long enough to be interrupted three times."""
    run_dir = tmp_path_factory.mktemp("run") / "run"
    return [
        *("--env", "tests.e2e.letters:Letters"),
        *("--hf-checkpoint", str(ensure_tiny_qwen3())),
        *("--run-dir", str(run_dir)),
        *("--num-rollout", str(NUM_ROLLOUT)),
        *("--rollout-batch-size", "4"),
        *("--n-samples-per-prompt", "4"),
        *("--rollout-max-response-len", "12"),
        *("--rollout-max-context-len", "64"),
        *("--lr", "1e-3"),
        *("--save-interval", "1"),
        *("--eval-interval", str(NUM_ROLLOUT)),
        *("--n-eval-tasks", "16"),
        *("--eval-temperature", "1.0"),
    ]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.kill()


def test_a_run_goes_on_after_sigkill_a_dead_engine_and_ctrl_c(
    flags: list[str], commands: list[Command], tmp_path: Path
) -> None:
    """Plan 82."""
    handover = tmp_path / "weights"
    flags = [*flags, "--update-weight-disk-dir", str(handover), *AGAINST_SNAPSHOTS]
    config = TrainConfig.from_argv(flags)
    run_dir = Path(config.run_dir)

    def start(*more: str) -> Command:
        command = Command("train", *flags, *more, log=tmp_path / f"{len(commands)}.log")
        commands.append(command)
        return command

    def updates() -> int:
        return len(events(run_dir, "train"))

    first = start("--async-save")
    first.until(lambda: stopped_in_a_save(first, run_dir / "checkpoints"), START_S, "a save beside updates")
    weights, memory = list(handover.iterdir()), first.shared_memory()
    assert weights
    assert memory
    first.signal(signal.SIGKILL)
    first.wait(10)
    nothing_survives(first)
    assert not [path for path in (*weights, *memory) if path.exists()]
    assert list((run_dir / "checkpoints").glob(".update-*"))
    whole = max(int(path.name.removeprefix("update-")) for path in (run_dir / "checkpoints").glob("update-*"))

    snapshots = listed_snapshots(run_dir, whole)
    assert [*snapshots] == sorted({0, *range(max(whole - 2, 0), whole + 1)})

    second = start()
    second.until(lambda: len(events(run_dir, "start")) == 2, START_S, "the second start")
    resumed_at = events(run_dir, "start")[1]["update"]
    assert resumed_at == whole
    assert listed_snapshots(run_dir, whole) == snapshots
    second.until(lambda: updates() > resumed_at, 60, "an update after the resume")
    for pid, line in second.survivors().items():
        if "vllm.entrypoints" in line and "supervisor" not in line:
            os.kill(pid, signal.SIGKILL)
    assert second.wait(120) == 1
    assert "a vLLM engine died during the run" in second.tail()
    assert "Traceback" not in second.tail()
    nothing_survives(second)

    third = start()
    third.until(lambda: len(events(run_dir, "start")) == 3, START_S, "the third start")
    third.signal(signal.SIGINT)
    assert third.wait(60) == 130
    nothing_survives(third)

    last = start()
    assert last.wait(600) == 0, last.tail()
    nothing_survives(last)
    check_finished(config, run_dir)
    assert not list((run_dir / "checkpoints").glob(".*"))
    assert not list(handover.iterdir())


def listed_snapshots(run_dir: Path, update: int) -> dict[int, tuple[str, bytes]]:
    """What a checkpoint says of each snapshot, and the digest of its weights."""
    state = json.loads((run_dir / "checkpoints" / f"update-{update:06d}" / "run_state.json").read_text())
    found = {}
    for number, probe in sorted(state["snapshots"].items(), key=lambda item: int(item[0])):
        weights = run_dir / "snapshots" / f"update-{int(number):06d}" / "model.safetensors"
        found[int(number)] = (json.dumps(probe), hashlib.sha256(weights.read_bytes()).digest())
    return found


def stopped_in_a_save(command: Command, checkpoints: Path) -> bool:
    """Stop the driver, which makes a checkpoint count, while one is being written and another is whole."""

    def writing() -> bool:
        return bool(list(checkpoints.glob(".update-*/*.distcp")) and list(checkpoints.glob("update-*")))

    if not writing():
        return False
    command.signal(signal.SIGSTOP)
    time.sleep(0.05)
    if writing():
        return True
    command.signal(signal.SIGCONT)
    return False


def check_finished(config: TrainConfig, run_dir: Path) -> None:
    """Every update once, every episode of the schedule once, in order, and a summary that adds up."""
    train = events(run_dir, "train")
    assert [e["update"] for e in train] == list(range(1, NUM_ROLLOUT + 1))
    assert undocumented(name for event in train for name in event) == set()
    tasks = training_tasks(config)
    for rollout in range(NUM_ROLLOUT):
        planned = {(r.episode_id, r.task.id, r.seed) for r in rollout_requests(config, tasks, rollout)}
        played = list(read_episodes(run_dir / "episodes" / f"rollout-{rollout:06d}.jsonl"))
        assert {(e.id, e.task_id, e.seed) for e in played} == planned
        assert len(played) == len(planned)
        own, opponents = ([e.trajectories[n] for e in played] for n in (0, 1))
        assert {v for t in own for v in t.weight_versions} == {rollout}
        drawn = expected_opponent(config, rollout)
        assert {v for t in opponents for v in t.weight_versions} == {drawn}
        assert {(t.policy, t.frozen) for t in opponents} == {(f"snapshot@{drawn}", True)}
        assert not any(s.loss_mask.any() for t in opponents for s in t.segments)
        assert train[rollout]["snapshot"] == drawn
        assert train[rollout][f"opponent/snapshot@{drawn}/episodes"] == len(planned)
        assert train[rollout]["tokens_lost_to_drift"] == 0
    kept = {int(p.name.removeprefix("update-")) for p in (run_dir / "snapshots").iterdir()}
    # Those of the two checkpoints, as of when the last snapshot was made.
    assert kept == {0, *range(NUM_ROLLOUT - 4, NUM_ROLLOUT + 1)}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["updates"] == summary["weight_version"] == NUM_ROLLOUT
    assert summary["tokens_sampled"] == sum(
        t.num_sampled_tokens
        for rollout in range(NUM_ROLLOUT)
        for e in read_episodes(run_dir / "episodes" / f"rollout-{rollout:06d}.jsonl")
        for t in e.trajectories
        if not t.frozen
    )
    assert 0 < summary["max_probe_logprob_diff"] < 1e-3
    assert 0 < summary["mean_rollout_train_logprob_diff"] < 1e-4
    assert summary["eval_before"]["n"] == summary["eval_after"]["n"] == 256
    assert summary["eval_after"]["mean"] > summary["eval_before"]["ci_high"]
    assert (run_dir / "curve.png").read_bytes().startswith(b"\x89PNG")


def expected_opponent(config: TrainConfig, rollout: int) -> int:
    """Who plays a rollout of a run that nothing interrupted."""
    snapshots = Snapshots(Path(), interval=1, most=3, seed=config.seed)
    for update in range(rollout + 1):
        snapshots.add(update, [0.0])
    return snapshots.drawn(rollout)


def test_two_engines_and_two_trainer_ranks_share_one_policy_by_broadcast(
    flags: list[str], commands: list[Command], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    more = [
        *("--run-dir", str(run_dir)),
        *("--num-rollout", "2"),
        *("--eval-interval", "0"),
        *("--save-interval", "1"),
        "--async-save",
        *("--rollout-num-engines", "2"),
        *("--actor-num-gpus-per-node", "2"),
        *("--update-weight-transport", "gloo"),
        *("--save-hf", str(tmp_path / "after-{update}")),
        *("--save-hf-interval", "1"),
        *("--save-hf-shard-size", "100KB"),
    ]
    command = Command("train", *flags, *more, log=tmp_path / "two.log")
    commands.append(command)
    assert command.wait(600) == 0, command.tail()
    nothing_survives(command)
    first, second = events(run_dir, "train")
    assert second["weight_version"] == 2
    assert 0 < second["max_probe_logprob_diff"] < 1e-3
    assert 0 < second["mean_rollout_train_logprob_diff"] < 1e-4
    played = list(read_episodes(run_dir / "episodes" / "rollout-000001.jsonl"))
    assert {v for e in played for t in e.trajectories for v in t.weight_versions} == {1}
    assert {p.name for p in (run_dir / "logs").glob("vllm-*.log")} == {"vllm-0.log", "vllm-1.log"}
    before = load_file(Path(ensure_tiny_qwen3()) / "model.safetensors")
    after: dict[str, Any] = {}
    files = sorted((tmp_path / "after-2").glob("*.safetensors"))
    for file in files:
        after |= load_file(file)
    index = json.loads((tmp_path / "after-2" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert index["weight_map"].keys() == after.keys()
    assert (tmp_path / "after-1" / "config.json").exists()
    assert [e["update"] for e in events(run_dir, "checkpoint")] == [1, 2]
    assert {p.name for p in (run_dir / "checkpoints").iterdir()} == {"update-000001", "update-000002"}
    assert before.keys() == after.keys()
    moved = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert 0 < moved <= 2.01e-3  # two Adam steps of at most 1e-3 each
    assert first["tokens_trained"] > 0
