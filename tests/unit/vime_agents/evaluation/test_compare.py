"""Two folders are compared task by task, or it is said why they cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.config import EvalConfig
from vime_agents.episode import Episode, RewardResult
from vime_agents.errors import ConfigError
from vime_agents.evaluation.compare import compare
from vime_agents.messages import user
from vime_agents.storage.eval_directory import EvalDirectory
from vime_agents.storage.stored_evaluation import StoredEvaluation
from vime_agents.task import Task

CONFIG = EvalConfig(env="Calculator-v0", model="scripted:gold")


def episode(number: int, task: str, reward: float | None, **metrics: float) -> Episode:
    """An episode whose component `half` is half of its reward."""
    made = make_episode(f"e{number}", task, reward, cause="engine" if reward is None else None)
    (trajectory,) = made.trajectories
    if reward is not None:
        result = RewardResult(value=reward, components={"half": reward / 2}, weights={"half": 2.0})
        trajectory = replace(trajectory, reward=result)
    return replace(made, task_id=task, trajectories=(trajectory,), metrics=metrics)


def evaluation(
    path: Path,
    rewards: Mapping[str, Sequence[float | None]],
    *,
    config: EvalConfig = CONFIG,
    tasks: Mapping[str, Any] | None = None,
    complete: bool = True,
    **metrics: float,
) -> StoredEvaluation:
    """A folder with these rewards; each task's inputs are its id, unless `tasks` says other ones."""
    with EvalDirectory(path, config) as folder:
        inputs = {task: {"id": task} for task in rewards} if tasks is None else tasks
        folder.keep_tasks([Task(id=task, inputs=values) for task, values in inputs.items()])
        episodes = [(task, reward) for task, many in rewards.items() for reward in many]
        for number, (task, reward) in enumerate(episodes):
            folder.append(episode(number, task, reward, **metrics))
        if complete:
            folder.write_report({})
    return StoredEvaluation.open(path)


def test_the_means_of_common_tasks_are_compared(tmp_path: Path) -> None:
    rewards_a = {"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0, None], "x": [1.0, 1.0], "e": [None, None]}
    rewards_b = {"c": [1.0, 1.0], "b": [0.0, 0.0], "a": [1.0, 1.0], "e": [1.0, 1.0], "y": [0.0], "z": [0.0]}
    a = evaluation(tmp_path / "a", rewards_a, calls=3)
    b = evaluation(tmp_path / "b", rewards_b, config=replace(CONFIG, model="scripted:wrong"), tries=1)
    found = compare(a, b)
    # a: 0.5 -> 1, b: 1 -> 0, c: 0 -> 1 (its failed episode is left out)
    assert (found.reward.num_tasks, found.reward.a, found.reward.b) == (3, 0.5, pytest.approx(2 / 3))
    assert (found.reward.better, found.reward.worse, found.reward.same) == (2, 1, 0)
    assert (found.only_a, found.only_b, found.unscored) == (1, 2, 1)
    # with zeros for failed episodes: a 0.5, b 1, c 0, e 0 against 1, 0, 1, 1
    assert (found.errors_as_zero.a, found.errors_as_zero.b) == (1.5 / 4, 3 / 4)
    assert found.parts["component/half"].difference == pytest.approx(found.reward.difference / 2)
    # an episode that never counted something has counted 0 of it
    assert (found.parts["metric/calls"].a, found.parts["metric/calls"].b) == (3.0, 0.0)
    assert (found.parts["metric/tries"].a, found.parts["metric/tries"].b) == (0.0, 1.0)
    assert found.parts["failed"].a == 1.5 / 4
    assert found.sign_flip_p_value is None  # task c has one reward in A and two in B
    assert found.warnings == ()
    assert [(c.task_id, c.b - c.a) for c in (*found.worst, *found.best)] == [("b", -1), ("a", 0.5), ("c", 1)]
    assert (found.policy_a, found.policy_b) == ("scripted:gold", "scripted:wrong")


def test_the_exact_p_value_is_of_equal_numbers_of_episodes(tmp_path: Path) -> None:
    a = evaluation(tmp_path / "a", {str(n): [0.0] for n in range(6)})
    b = evaluation(tmp_path / "b", {str(n): [1.0] for n in range(6)})
    assert compare(a, b).sign_flip_p_value == pytest.approx(2 / 2**6)
    text = json.dumps(compare(a, b, top=2).to_dict(), allow_nan=False)
    found = json.loads(text)
    assert found["reward"]["low"] is None  # all tasks differ by the same
    assert (len(found["best"]), found["worst"]) == (2, [])
    assert (compare(a, b, top=0).best, compare(b, a, top=0).worst) == ((), ())


def test_an_episode_that_never_started_is_a_zero_among_errors_alone(tmp_path: Path) -> None:
    a = evaluation(tmp_path / "a", {"a": [1.0]})
    with EvalDirectory(tmp_path / "b", CONFIG) as folder:
        folder.append(replace(episode(0, "a", None), trajectories=()))
        folder.append(episode(1, "a", 1.0))
    b = StoredEvaluation.open(tmp_path / "b")
    found = compare(a, b)
    assert (found.reward.b, found.errors_as_zero.b) == (1.0, 0.5)


def test_other_tasks_of_the_same_id_are_refused(tmp_path: Path) -> None:
    a = evaluation(tmp_path / "a", {"t": [1.0]}, tasks={"t": {"answer": 3}})
    b = evaluation(tmp_path / "b", {"t": [1.0]}, tasks={"t": {"answer": 4}}, config=replace(CONFIG, seed=7))
    with pytest.raises(ConfigError, match=r"task 't': answer 3 -> 4 \(seed 0 -> 7\)\. Evaluate both with"):
        compare(a, b)


def test_without_stored_tasks_the_first_messages_tell(tmp_path: Path) -> None:
    a, b = (evaluation(tmp_path / name, {"t": [1.0]}) for name in "ab")
    (tmp_path / "a" / "tasks.jsonl").unlink()
    a = StoredEvaluation.open(tmp_path / "a")
    assert "by their first messages alone" in compare(a, b).warnings[0]
    with EvalDirectory(tmp_path / "c", CONFIG) as folder:
        made = episode(0, "t", 1.0)
        (trajectory,) = made.trajectories
        turns = (replace(trajectory.turns[0], messages=(user("another question"),)),)
        folder.append(replace(made, trajectories=(replace(trajectory, turns=turns),)))
        folder.write_report({})
    c = StoredEvaluation.open(tmp_path / "c")
    with pytest.raises(ConfigError, match="task 't' began with other messages"):
        compare(a, c)
    # Where the tasks are stored and the same, it is the env's prompt that was changed.
    (tmp_path / "c" / "tasks.jsonl").write_bytes((tmp_path / "b" / "tasks.jsonl").read_bytes())
    (warning,) = compare(b, StoredEvaluation.open(tmp_path / "c")).warnings
    assert "the prompt was changed" in warning


def test_other_envs_and_no_common_task_are_refused(tmp_path: Path) -> None:
    a = evaluation(tmp_path / "a", {"train-0": [1.0]}, config=replace(CONFIG, split="train"))
    b = evaluation(tmp_path / "b", {"train-0": [1.0]}, config=replace(CONFIG, env="Coding-v0"))
    with pytest.raises(ConfigError, match=r"of 'Calculator-v0', and .* of 'Coding-v0'"):
        compare(a, b)
    c = evaluation(tmp_path / "c", {"test-0": [1.0]})
    with pytest.raises(ConfigError, match=r"no task in common \(split train -> test\)"):
        compare(a, c)
    same = replace(CONFIG, env="vime_envs.calculator:Calculator", split="train")
    d = evaluation(tmp_path / "d", {"train-0": [1.0]}, config=same)
    assert compare(a, d).reward.same == 1


def test_settings_that_could_explain_a_difference_are_a_warning(tmp_path: Path) -> None:
    a = evaluation(tmp_path / "a", {"t": [1.0]}, config=replace(CONFIG, concurrency=2, max_error_rate=0.5))
    b = evaluation(
        tmp_path / "b", {"t": [1.0]}, config=replace(CONFIG, temperature=1.0, num_tasks=3), complete=False
    )
    assert compare(a, b).warnings == (
        f"{tmp_path / 'b'} is not complete",
        "other settings: temperature: 0.0 -> 1.0",
    )


def test_opponents_do_not_count(tmp_path: Path) -> None:
    config = EvalConfig(env="TicTacToe-v0", model="scripted:gold", agents="O=scripted:random")

    def game(path: Path, own: float) -> StoredEvaluation:
        made = episode(0, "t", 1.0)
        (trajectory,) = made.trajectories
        seats = [
            replace(trajectory, agent=agent, reward=RewardResult(value=value))
            for agent, value in (("X", own), ("O", -own))
        ]
        with EvalDirectory(path, config) as folder:
            folder.append(replace(made, trajectories=tuple(seats)))
        return StoredEvaluation.open(path)

    found = compare(game(tmp_path / "a", 0.0), game(tmp_path / "b", 1.0))
    assert (found.reward.a, found.reward.b, found.errors_as_zero.b) == (0.0, 1.0, 1.0)
