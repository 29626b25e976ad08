"""The data order is a pure function of the config and the rollout's number."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from vime_agents.config.train import TrainConfig
from vime_agents.errors import DatasetError
from vime_trainers.ray.schedule import rollout_requests, training_tasks


def config(**settings: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "env": "KeyLookup-v0",
        "hf_checkpoint": "model",
        "run_dir": "run",
        "rollout_batch_size": 3,
        "n_samples_per_prompt": 2,
    }
    return TrainConfig(**(defaults | settings))


def requests(c: TrainConfig, *rollouts: int) -> list[tuple[str, str, str, int]]:
    tasks = training_tasks(c)
    every = chain.from_iterable(rollout_requests(c, tasks, r) for r in rollouts)
    return [(r.episode_id, r.group_id, r.task.id, r.seed) for r in every]


def test_a_rollout_is_the_same_whether_or_not_others_came_before() -> None:
    assert requests(config(), 0, 1, 2)[12:] == requests(config(), 2)
    assert requests(config()) == requests(config())
    assert requests(config(), 1) != requests(config(seed=7), 1)


def test_a_group_is_one_task_and_its_episodes_differ_in_id_and_seed() -> None:
    rows = requests(config(), 0, 1)
    groups = {g: {t for _, group, t, _ in rows if group == g} for _, g, _, _ in rows}
    assert len(groups) == 6
    assert all(len(tasks) == 1 for tasks in groups.values())
    assert len({e for e, *_ in rows}) == len({seed for *_, seed in rows}) == 12


def data(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_epoch_plays_every_row_once_and_groups_stay_apart(tmp_path: Path) -> None:
    path = data(tmp_path / "t.jsonl", [{"id": str(i), "q": f"q{i}", "a": str(i)} for i in range(6)])
    c = config(prompt_data=path, input_key="q", label_key="a")
    rows = requests(c, 0, 1, 2, 3)
    first, second = rows[:12], rows[12:]
    for epoch in (first, second):
        assert sorted({t for _, _, t, _ in epoch}) == [str(i) for i in range(6)]
    assert [t for _, _, t, _ in first] != [t for _, _, t, _ in second]
    assert len({g for _, g, _, _ in rows}) == 12
    task = training_tasks(c)[4]
    assert (task.id, task.inputs["prompt"], task.inputs["label"]) == ("4", "q4", "4")


def test_a_row_without_the_needed_key_names_file_line_and_key(tmp_path: Path) -> None:
    path = data(tmp_path / "t.jsonl", [{"input": "a", "gold": "b"}, {"input": "c"}])
    with pytest.raises(DatasetError, match=r"t\.jsonl:2: no key 'gold'"):
        training_tasks(config(prompt_data=path, label_key="gold"))


def test_rows_may_come_from_any_file_of_tasks_and_from_a_slice_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{row}\n" for row in ["q,a", "one,1", "two,2", "three,3"]))
    tasks = training_tasks(config(prompt_data=f"{path}@[1:]", input_key="q", label_key="a"))
    assert [(tasks[n].inputs["prompt"], tasks[n].inputs["label"]) for n in range(len(tasks))] == [
        ("two", "2"),
        ("three", "3"),
    ]
