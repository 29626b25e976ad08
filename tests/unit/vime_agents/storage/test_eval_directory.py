"""An evaluation's folder: made, gone on with, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.config import EvalConfig
from vime_agents.errors import ConfigError
from vime_agents.policies.metered import Spent
from vime_agents.storage.eval_directory import EvalDirectory

CONFIG = EvalConfig(env="Calculator-v0", model="scripted:gold", num_tasks=4)


def interrupted(path: Path, *groups: str) -> None:
    """An evaluation with an episode of each of these groups."""
    with EvalDirectory(path, CONFIG) as folder:
        assert folder.finished == []
        for number, group in enumerate(groups):
            folder.append(make_episode(f"e{number}", group))


def test_the_same_config_goes_on_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "a", "b")
    with (tmp_path / "out" / "episodes.jsonl").open("ab") as file:
        file.write(b'{"id": "e')
    changed = replace(CONFIG, concurrency=3, out=str(tmp_path), max_error_rate=0.5)
    with EvalDirectory(tmp_path / "out", changed) as folder:
        assert [e.id for e in folder.finished] == ["e0", "e1"]
        folder.append(make_episode("e2", "c"))
    with EvalDirectory(tmp_path / "out", changed) as folder:
        assert [e.id for e in folder.finished] == ["e0", "e1", "e2"]


def test_of_compared_episodes_whole_groups_are_kept(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "a", "a", "b")
    with EvalDirectory(tmp_path / "out", CONFIG, group_size=2) as folder:
        assert [e.id for e in folder.finished] == ["e0", "e1"]


def test_another_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "a")
    with pytest.raises(ConfigError, match=r"--out: .* another config.*\n  num_tasks: 4 -> 5$"):
        EvalDirectory(tmp_path / "out", replace(CONFIG, num_tasks=5))
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:  # whose refusal left it free
        assert len(folder.finished) == 1


def test_a_complete_evaluation_is_refused(tmp_path: Path) -> None:
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:
        folder.write_report({"mean": 1.0})
    with pytest.raises(ConfigError, match="complete evaluation"):
        EvalDirectory(tmp_path / "out", CONFIG)


def test_episodes_of_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="episodes of something else"):
        EvalDirectory(tmp_path, CONFIG)
    assert (tmp_path / "episodes.jsonl").read_text() == "{}\n"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        EvalDirectory(tmp_path / "out", CONFIG),
        pytest.raises(ConfigError, match=r"--out: .* is in use by process \d+"),
    ):
        EvalDirectory(tmp_path / "out", CONFIG)


def test_what_was_spent_is_there_at_the_next_start_retries_included(tmp_path: Path) -> None:
    spent = Spent(
        calls=3, prompt_tokens=30, retries={"HTTP 429": 2, "no connection": 1}, most_calls_at_once=5
    )
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:
        assert folder.spent() == Spent()
        folder.keep_usage(spent)
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:
        assert folder.spent() == spent


def test_retries_of_calls_none_of_which_was_answered_are_kept(tmp_path: Path) -> None:
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:
        folder.keep_usage(Spent(retries={"HTTP 429": 2}))
        assert folder.spent().retries == {"HTTP 429": 2}


def test_what_an_older_release_wrote_of_what_was_spent_is_read(tmp_path: Path) -> None:
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:
        old = {"calls": 2, "calls_without_usage": 0, "prompt_tokens": 9, "cached_prompt_tokens": 0}
        (folder.path / "usage.json").write_text(json.dumps({**old, "sampled_tokens": 4}))
        assert folder.spent() == Spent(calls=2, prompt_tokens=9, sampled_tokens=4)


@pytest.mark.parametrize("text", ["", "[]", '{"calls": 1}', '{"retries": 1}'])
def test_what_says_nothing_of_what_was_spent_is_refused(tmp_path: Path, text: str) -> None:
    with EvalDirectory(tmp_path / "out", CONFIG) as folder:
        (folder.path / "usage.json").write_text(text)
        with pytest.raises(ConfigError, match="does not say what was spent"):
            folder.spent()
