"""A run's folder: one owner, one config, and nothing twice after a crash."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml

from vime_agents.config import TrainConfig
from vime_agents.errors import CheckpointError, ConfigError
from vime_agents.storage.run_directory import RunDirectory


def config(path, **settings) -> TrainConfig:
    return TrainConfig(**{"env": "E", "hf_checkpoint": "m", "run_dir": str(path)} | settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "a"


def start(path, **settings) -> RunDirectory:
    return RunDirectory.create_or_resume(path, config(path, **settings))


def save(run: RunDirectory, update: int) -> None:
    (run.begin_checkpoint(update) / "weights").write_text(str(update))
    run.commit_checkpoint(update)


def play(run: RunDirectory, update: int, *, checkpoint: bool) -> None:
    """What a training loop leaves behind for one update."""
    with run.rollout_episodes(update - 1) as writer:
        writer.path.touch()
    run.log("train", update, {"loss": 0.5})
    with run.eval_episodes(update):
        run.log("eval", update, {"reward": 0.25})
    if checkpoint:
        save(run, update)


def test_a_new_run_writes_its_config_and_where_it_ran(path):
    with start(path, lr=1e-5) as run:
        assert run.resume_update == 0
    assert TrainConfig.from_yaml((path / "config.yaml").read_text()) == config(path, lr=1e-5)
    record = json.loads((path / "run.json").read_text())
    assert record["config"]["lr"] == 1e-5
    assert record["seed"] == 1234
    assert record["starts"][0]["packages"]["numpy"] == np.__version__
    assert record["starts"][0]["resume_update"] == 0
    assert {p.name for p in path.iterdir()} >= {"checkpoints", "episodes", "logs", "run.lock"}


def test_the_written_config_runs_again_as_it_is_even_after_resume_never(path):
    start(path, resume="never").close()
    again = TrainConfig.from_argv(["--config", str(path / "config.yaml")])
    RunDirectory.create_or_resume(again.run_dir, again).close()
    assert len(json.loads((path / "run.json").read_text())["starts"]) == 2


def test_a_resumed_run_holds_each_update_once(path):
    with start(path) as run:
        for update in (1, 2, 3):
            play(run, update, checkpoint=update == 2)
        run.log("train", 4, {"loss": 9.0})
        (path / "checkpoints" / ".update-000004.unfinished").mkdir()
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "upd')
    with start(path) as run:
        assert run.resume_update == 2
        assert run.checkpointed() == [2]
        assert (run.checkpoint(2) / "weights").read_text() == "2"
        assert [(e["kind"], e["update"]) for e in run.events()] == [
            ("train", 1),
            ("eval", 1),
            ("train", 2),
            ("eval", 2),
        ]
        assert sorted(p.name for p in run.episodes.iterdir()) == [
            "eval-000001.jsonl",
            "eval-000002.jsonl",
            "rollout-000000.jsonl",
            "rollout-000001.jsonl",
        ]
        assert [p.name for p in run.checkpoints.iterdir()] == ["update-000002"]
        play(run, 3, checkpoint=True)
        assert [e["update"] for e in run.events("train")] == [1, 2, 3]


def test_a_run_without_a_checkpoint_starts_again_from_nothing(path):
    with start(path) as run:
        run.log("eval", 0, {"reward": 0.0})
        play(run, 1, checkpoint=False)
    with start(path) as run:
        assert run.resume_update == 0
        assert [(e["kind"], e["update"]) for e in run.events()] == [("eval", 0)]


def test_metrics_are_plain_json(path):
    with start(path) as run:
        run.log(
            "train",
            1,
            {
                "loss": np.float32(0.5),
                "n": np.int64(3),
                "nan": float("nan"),
                "by": {"inf": np.inf},
                "l": (1,),
            },
        )
    (event,) = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    del event["time"]
    assert event == {
        "kind": "train",
        "update": 1,
        "loss": 0.5,
        "n": 3,
        "nan": None,
        "by": {"inf": None},
        "l": [1],
    }


def test_a_summary_replaces_the_one_before(path):
    with start(path) as run:
        run.write_summary({"reward": float("inf")})
        run.write_summary({"reward": np.float64(1.0)})
    assert json.loads((path / "summary.json").read_text()) == {"reward": 1.0}


def test_a_checkpoint_counts_once_it_is_committed(path):
    with start(path) as run:
        (run.begin_checkpoint(1) / "half").write_text("x")
        assert run.checkpointed() == []
        assert list(run.begin_checkpoint(1).iterdir()) == []
        run.commit_checkpoint(1)
        assert run.checkpointed() == [1]
        with pytest.raises(CheckpointError, match="has a checkpoint already"):
            run.begin_checkpoint(1)
        with pytest.raises(CheckpointError, match=r"no such checkpoint; there are \[1\]"):
            run.checkpoint(2)


def test_what_still_writes_for_a_killed_start_does_not_reach_the_next_one(path):
    with start(path) as run:
        old = run.begin_checkpoint(1)
    with start(path) as run:
        assert not old.exists()
        assert run.begin_checkpoint(1) != old


def test_only_the_newest_checkpoints_are_kept(path):
    with start(path) as run:
        for update in (1, 2, 3):
            save(run, update)
        run.prune_checkpoints(0)
        assert run.checkpointed() == [1, 2, 3]
        run.prune_checkpoints(2)
        assert run.checkpointed() == [2, 3]
        run.prune_checkpoints(5)
        assert (run.checkpoint(3) / "weights").read_text() == "3"
        assert sorted(p.name for p in run.checkpoints.iterdir()) == ["update-000002", "update-000003"]


def test_the_order_of_updates_is_by_number_beyond_six_digits(path):
    with start(path) as run:
        for update in (999_999, 1_000_000, 2):
            save(run, update)
        assert run.checkpointed() == [2, 999_999, 1_000_000]


def test_two_owners_are_refused_and_the_owner_is_named(path):
    with start(path), pytest.raises(ConfigError, match=rf"--run-dir: .* in use by process {os.getpid()}"):
        start(path)
    start(path).close()


def test_the_lock_of_a_killed_process_is_free(path):
    code = (
        "import sys, time\n"
        "from vime_agents.config import TrainConfig\n"
        "from vime_agents.storage.run_directory import RunDirectory\n"
        "run = RunDirectory.create_or_resume(sys.argv[1], "
        "TrainConfig(env='E', hf_checkpoint='m', run_dir=sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {owner.pid}"):
            start(path)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    start(path).close()


def test_another_config_is_refused_with_the_difference_and_the_lock_is_given_back(path):
    start(path).close()
    with pytest.raises(ConfigError) as caught:
        start(path, lr=1.0, rollout_seed=7, num_rollout=5)
    text = str(caught.value)
    assert "lr: 1e-06 -> 1.0" in text
    assert "rollout_seed: 42 -> 7" in text
    assert "num_rollout" not in text
    start(path).close()


def test_a_longer_run_of_the_same_config_is_the_same_run(path):
    start(path, num_rollout=5).close()
    start(path, num_rollout=50, save_interval=1, max_retries=0).close()
    assert yaml.safe_load((path / "config.yaml").read_text())["num_rollout"] == 50


def test_resume_never_wants_a_new_folder_and_must_a_checkpoint(path):
    with pytest.raises(ConfigError, match=r"--resume must: .* holds no checkpoint"):
        start(path, resume="must")
    with start(path) as run:
        save(run, 3)
    with pytest.raises(ConfigError, match=r"--resume never: .* holds a run"):
        start(path, resume="never")
    with start(path, resume="must") as run:
        assert run.resume_update == 3


def test_a_start_that_was_killed_before_its_config_can_be_repeated(path):
    start(path).close()
    (path / "config.yaml").unlink()
    start(path).close()
    assert (path / "config.yaml").exists()


def test_a_folder_of_something_else_is_not_taken(path):
    path.mkdir(parents=True)
    (path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"not a run's folder: it holds 'thesis\.tex'"):
        start(path)
    assert [p.name for p in path.iterdir()] == ["thesis.tex"]
    file = path / "thesis.tex"
    with pytest.raises(ConfigError, match="is a file"):
        start(file)
