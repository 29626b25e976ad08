"""A folder's episodes: found, in order, told apart."""

from pathlib import Path

import pytest

from tests.unit.vime_agents.episodes import make_episode
from tests.unit.vime_agents.stored import write_file, write_run
from vime_agents.errors import ConfigError, DatasetError
from vime_agents.storage.stored_episodes import episode_files, find_episode, stored_episodes


def names(files: list[Path]) -> list[tuple[int, str, str]]:
    return [(s.number, s.source, s.episode.id) for s in stored_episodes(files)]


def test_an_evaluation_has_one_file(tmp_path: Path) -> None:
    write_file(tmp_path / "episodes.jsonl", [make_episode("a"), make_episode("b")])
    expected = [(1, "episodes", "a"), (2, "episodes", "b")]
    assert names(episode_files(tmp_path)) == expected
    assert names(episode_files(tmp_path / "episodes.jsonl")) == expected


def test_a_run_stands_in_the_order_of_its_updates(tmp_path: Path) -> None:
    write_run(tmp_path)
    files = episode_files(tmp_path)
    assert [f.stem for f in files][:4] == ["eval-000000", "rollout-000000", "eval-000001", "rollout-000001"]
    assert [f.stem for f in files][-2:] == ["rollout-000009", "eval-000010"]
    assert episode_files(tmp_path / "episodes") == files
    assert names(files)[:3] == [
        (1, "eval-000000", "eval-0-0"),
        (2, "rollout-000000", "r0-0"),
        (3, "rollout-000000", "r0-1"),
    ]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    write_file(file, [make_episode("a")])
    with file.open("a") as more:
        more.write('{"id": "b"')
    assert [name for _, _, name in names([file])] == ["a"]


def test_a_line_that_is_no_episode_is_named(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text("{}\n")
    with pytest.raises(DatasetError, match=r"episodes\.jsonl:1: episode schema None"):
        names([file])


def test_an_episode_is_found_by_id_by_number_and_by_its_file(tmp_path: Path) -> None:
    write_run(tmp_path)
    files = episode_files(tmp_path)
    assert find_episode(files, "r0-1").number == 3
    assert find_episode(files, "3").episode.id == "r0-1"
    assert find_episode(files, "eval-000010/eval-0-0").number == 23
    with pytest.raises(
        ConfigError, match="3 episodes have the id 'eval-0-0'; say which one: eval-000000/eval-0-0"
    ):
        find_episode(files, "eval-0-0")
    with pytest.raises(ConfigError, match=r"no episode 'r0-11' among 23.* Did you mean 'r0-1'\?"):
        find_episode(files, "r0-11")


def test_an_id_goes_before_a_number(tmp_path: Path) -> None:
    write_file(tmp_path / "episodes.jsonl", [make_episode("2"), make_episode("b")])
    assert find_episode(episode_files(tmp_path), "2").number == 1


def test_a_folder_without_episodes_says_what_was_looked_for_and_where_there_are_some(tmp_path: Path) -> None:
    write_file(tmp_path / "runs" / "a" / "episodes.jsonl", [make_episode("a")])
    with pytest.raises(ConfigError, match=r"no episodes here: neither episodes\.jsonl.* give one .* it: a$"):
        episode_files(tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"no such folder\. Did you mean .*/runs\?"):
        episode_files(tmp_path / "rums")
    with pytest.raises(ConfigError, match=r"no such folder$"):
        episode_files(tmp_path / "nowhere" / "at all")
