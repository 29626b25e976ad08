"""`vime-agents train` up to the training loop."""

import asyncio
import importlib
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from vime_agents.cli import main
from vime_agents.cli import train as module
from vime_agents.config import TrainConfig
from vime_agents.errors import TrainerError

ROOT = Path(__file__).parents[4]


@pytest.fixture
def flags(tmp_path):
    return ["--env", "cli_envs:Sum", "--hf-checkpoint", "m", "--run-dir", str(tmp_path / "run")]


@pytest.fixture
def loop(monkeypatch):
    """Replaces the training loop by a function."""

    def install(function):
        loops = {"vime_trainers.ray.train_loop:train": function}
        monkeypatch.setattr(module.registry, "load_object", lambda path, what: loops[path])

    return install


def test_the_loop_gets_the_config_and_gives_the_exit_code(flags, loop):
    seen = []
    loop(lambda config: seen.append(config) or 1)
    assert module.run([*flags, "--lr", "0.5"]) == 1
    (config,) = seen
    assert isinstance(config, TrainConfig)
    assert (config.lr, config.env) == (0.5, "cli_envs:Sum")


def test_a_dry_run_prints_a_config_that_runs_and_starts_nothing(flags, capsys, tmp_path):
    assert main(["train", *flags, "--lr", "0.5", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert TrainConfig.from_yaml(text).lr == 0.5
    assert yaml.safe_load(text)["run_dir"] == str(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_traceback_of_a_failed_run_is_kept_with_the_run(flags, loop, tmp_path):
    def fail(config):
        (Path(config.run_dir) / "logs").mkdir(parents=True)
        raise TrainerError("rank 1 died")

    loop(fail)
    with pytest.raises(TrainerError):
        module.run(flags)
    log = (tmp_path / "run" / "logs" / "errors.log").read_text()
    assert "Traceback" in log
    assert "in fail" in log
    assert "rank 1 died" in log


def test_a_loop_that_sigterm_cancelled_ends_like_an_interrupted_one(flags, monkeypatch, capsys):
    def terminate_while_running(config):
        async def loop():
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

        asyncio.run(loop())

    monkeypatch.setattr(module, "TRAIN_LOOP", "cli_envs:train")
    importlib.import_module("cli_envs").train = terminate_while_running
    assert main(["train", *flags]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_failure_before_there_is_a_run_leaves_nothing_behind(flags, loop, tmp_path):
    def fail(config):
        raise TrainerError("no GPU")

    loop(fail)
    with pytest.raises(TrainerError):
        module.run(flags)
    assert not (tmp_path / "run").exists()


def test_train_py_is_the_same_command(flags, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", *flags, "--num-rollout", "3", "--dry-run"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    assert end.value.code == 0
    assert TrainConfig.from_yaml(capsys.readouterr().out).num_rollout == 3
