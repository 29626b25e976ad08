"""Whole files or none, the same rows in JSON Lines and Parquet, whatever the episodes hold."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.vime_agents.stored import (
    HOSTILE,
    game_episode,
    tool_episode,
    unstarted_episode,
    write_file,
)
from vime_agents.errors import ConfigError, DatasetError, MissingDependencyError
from vime_agents.storage.exports import parquet
from vime_agents.storage.exports.write import export_episodes
from vime_agents.storage.stored_episodes import StoredEpisode, stored_episodes


@pytest.fixture
def store(tmp_path: Path) -> list[Path]:
    file = tmp_path / "episodes.jsonl"
    arguments = json.dumps({HOSTILE: HOSTILE})
    write_file(
        file,
        [tool_episode("4"), game_episode(), unstarted_episode(), tool_episode(HOSTILE, arguments, "hostile")],
    )
    return [file]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("tokens", [False, True])
def test_both_formats_have_the_same_rows(tmp_path: Path, store: list[Path], tokens: bool) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    for form in ("jsonl", "parquet"):
        out = tmp_path / f"out.{form}"
        assert export_episodes(stored_episodes(store), out, form, tokens=tokens) == 4
    rows = lines(tmp_path / "out.jsonl")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == rows
    assert [row["id"] for row in rows] == ["tools", "game", "unstarted", "hostile"]
    assert ("segments" in rows[0]) == tokens
    assert sorted(p.name for p in tmp_path.iterdir()) == ["episodes.jsonl", "out.jsonl", "out.parquet"]


def test_hostile_text_survives_and_half_a_surrogate_pair_is_written_out(
    tmp_path: Path, store: list[Path]
) -> None:
    export_episodes(stored_episodes(store), tmp_path / "out.jsonl", "jsonl")
    content = lines(tmp_path / "out.jsonl")[3]["messages"][0]["content"]
    assert content == HOSTILE.replace("\ud800", "\\ud800")
    assert "\x00" in content


def test_ten_megabytes_of_a_tools_output_survive(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    text = "é\x00\n" * (10 << 20 >> 2)
    assert len(text.encode()) == 10 << 20
    (trajectory,) = tool_episode().trajectories
    message = {"role": "tool", "content": text, "tool_call_id": "call-1", "name": "add"}
    turns = (trajectory.turns[0], replace(trajectory.turns[1], messages=(message,)))
    episode = replace(tool_episode(), trajectories=(replace(trajectory, turns=turns),))
    stored = StoredEpisode(number=1, source="episodes", episode=episode)
    for form in ("jsonl", "parquet", "atif"):
        export_episodes([stored], tmp_path / f"{form}.{form.replace('atif', 'json')}", form)
    assert lines(tmp_path / "jsonl.jsonl")[0]["messages"][3]["content"] == text
    (row,) = pq.read_table(tmp_path / "parquet.parquet").to_pylist()
    assert row["messages"][3]["content"] == text
    (result,) = lines(tmp_path / "atif.json")[0]["steps"][2]["observation"]["results"]
    assert result["content"] == text


@pytest.mark.parametrize("form", ["jsonl", "parquet", "atif"])
def test_a_large_store_is_not_held_in_memory(tmp_path: Path, form: str, monkeypatch) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 1 << 20)

    def many() -> Iterator[StoredEpisode]:
        for number in range(1, 301):
            episode = tool_episode("x" * 10_000, episode_id=str(number))
            yield StoredEpisode(number=number, source="episodes", episode=episode)

    export_episodes([next(many())], tmp_path / "first", form)  # imports
    tracemalloc.start()
    assert export_episodes(many(), tmp_path / "out", form) == 300
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20  # of 300 episodes of about 150 kB


def test_what_fails_halfway_leaves_no_file_and_the_old_one(tmp_path: Path, store: list[Path]) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    with store[0].open("a") as file:
        file.write("{}\n")
    with pytest.raises(DatasetError, match=r"episodes\.jsonl:5"):
        export_episodes(stored_episodes(store), out, "jsonl", overwrite=True)
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["episodes.jsonl", "out.jsonl"]


def test_a_file_is_replaced_only_when_asked(tmp_path: Path, store: list[Path]) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    with pytest.raises(ConfigError, match="is there already; give another file, or --overwrite"):
        export_episodes(stored_episodes(store), out, "jsonl")
    assert export_episodes(stored_episodes(store), out, "jsonl", overwrite=True) == 4
    assert len(lines(out)) == 4


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; name a file in it"):
        export_episodes([], tmp_path, "jsonl")
    with pytest.raises(ConfigError, match=r"cannot write .*: No such file"):
        export_episodes([], tmp_path / "no" / "out.jsonl", "jsonl")


def test_nothing_to_write_is_an_empty_file_of_the_same_columns(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    assert export_episodes([], tmp_path / "out.parquet", "parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet").column_names[:3] == ["source", "id", "env_id"]


def test_a_number_that_parquet_cannot_hold_names_the_episodes(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    episode = replace(tool_episode(), seed=1 << 70)
    with pytest.raises(DatasetError, match="episodes tools to tools"):
        export_episodes(
            [StoredEpisode(number=1, source="s", episode=episode)], tmp_path / "out.parquet", "parquet"
        )
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_the_error_has_the_install_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vime-agents\[data\]'"):
        export_episodes([], tmp_path / "out.parquet", "parquet")
    assert list(tmp_path.iterdir()) == []
