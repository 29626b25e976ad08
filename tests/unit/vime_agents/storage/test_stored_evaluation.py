"""What comes after an evaluation reads its folder, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.config import EvalConfig
from vime_agents.errors import ConfigError, DatasetError
from vime_agents.storage.eval_directory import EvalDirectory
from vime_agents.storage.stored_evaluation import StoredEvaluation
from vime_agents.storage.stored_tasks import StoredTask, changed_tasks
from vime_agents.task import Task, content_id

CONFIG = EvalConfig(env="Calculator-v0", model="scripted:gold", num_tasks=4)
TASKS = [Task(id="a", inputs={"n": 1}, split="test", metadata={"level": 2}), Task(id="b", inputs={"n": {1}})]


def test_settings_tasks_and_episodes_come_back(tmp_path: Path) -> None:
    with EvalDirectory(tmp_path, CONFIG) as folder:
        folder.keep_tasks(TASKS)
        folder.append(make_episode("e0"))
        assert StoredEvaluation.open(tmp_path).report is None
        folder.write_report({"mean": 1.0})
    found = StoredEvaluation.open(tmp_path)
    assert (found.env_id, found.settings["num_tasks"]) == ("Calculator-v0", 4)
    assert found.report is not None
    assert found.report["mean"] == 1.0
    assert [e.id for e in found.episodes()] == ["e0"]
    assert found.tasks is not None
    first = StoredTask(
        id="a", split="test", content=content_id({"n": 1}), inputs={"n": 1}, metadata={"level": 2}
    )
    assert found.tasks["a"] == first
    assert found.tasks["b"].inputs is None  # a set is not JSON: its content alone is known


def test_a_resumed_start_sees_that_a_task_was_changed(tmp_path: Path) -> None:
    with EvalDirectory(tmp_path, CONFIG) as folder:
        folder.keep_tasks(TASKS)
    with EvalDirectory(tmp_path, CONFIG) as folder:
        folder.keep_tasks(TASKS)
        with pytest.raises(ConfigError, match=r"--out: .*: task 'a': n 1 -> 3, hint \(absent\) -> 'x'"):
            folder.keep_tasks([Task(id="a", inputs={"n": 3, "hint": "x"})])


def test_the_first_changed_tasks_are_named_and_the_others_counted() -> None:
    old = {str(n): StoredTask.of(Task(id=str(n), inputs={"n": n})) for n in range(6)}
    new = {str(n): StoredTask.of(Task(id=str(n), inputs={"n": n + (n > 0)})) for n in range(6)}
    assert changed_tasks(old, new) == [*(f"task '{n}': n {n} -> {n + 1}" for n in (1, 2, 3)), "and 2 more"]
    assert changed_tasks(old, {"9": new["1"]}) == []
    hidden = StoredTask.of(Task(id="1", inputs={"n": {1}}))
    assert changed_tasks(old, {"1": hidden}) == ["task '1': another content"]


def test_tasks_of_any_content_have_one_that_can_be_compared() -> None:
    odd = [StoredTask.of(Task(id="t", inputs={"pairs": {1: "a", "b": n, (2,): "c"}})) for n in (1, 1, 2)]
    assert odd[0] == odd[1]
    assert odd[0].inputs is None
    assert odd[0].content != odd[2].content


def test_a_folder_of_an_older_release_has_no_tasks(tmp_path: Path) -> None:
    with EvalDirectory(tmp_path, CONFIG) as folder:
        folder.append(make_episode("e0"))
    with EvalDirectory(tmp_path, CONFIG) as folder:
        folder.keep_tasks(TASKS)  # what the start before played, nobody knows
    assert StoredEvaluation.open(tmp_path).tasks is None


def test_what_is_no_evaluation_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.yaml.*eval --out"):
        StoredEvaluation.open(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    (tmp_path / "episodes.jsonl").touch()
    with pytest.raises(ConfigError, match="names no env"):
        StoredEvaluation.open(tmp_path)
    (tmp_path / "config.yaml").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        StoredEvaluation.open(tmp_path)
    (tmp_path / "config.yaml").write_text("env: X-v0\n")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(DatasetError, match=r"tasks\.jsonl:1: not a task"):
        StoredEvaluation.open(tmp_path)
