"""Episodes survive the disk."""

import json
from dataclasses import replace

import numpy as np
import pytest

from vime_agents.episode import Episode, Outcome, RewardResult, Segment, Span, Trajectory, Turn
from vime_agents.errors import DatasetError
from vime_agents.storage.episodes import EpisodeWriter, read_episodes


def episode(name: str = "e-0") -> Episode:
    turn = Turn(
        index=0,
        messages=({"role": "user", "content": "1 + 1 = é?"},),
        reply={"role": "assistant", "content": "2"},
        finish_reason="stop",
        num_prompt_tokens=2,
        num_sampled_tokens=1,
        policy_s=0.1,
        env_s=0.2,
    )
    segment = Segment(
        token_ids=np.asarray([5, 6, 7]),
        logprobs=np.asarray([np.nan, np.nan, -0.1]),
        spans=(
            Span(source="user", start=0, end=2, turn=0),
            Span(
                source="sampled", start=2, end=3, turn=0, weight_version=4, trainable=True, reason="sampled"
            ),
        ),
    )
    reward = RewardResult(value=1.0, components={"score": 1.0}, weights={"score": 1.0})
    return Episode(
        id=name,
        env_id="Sum-v0",
        task_id="t",
        group_id="g",
        seed=1,
        outcome=Outcome(kind="terminated", stop="done"),
        trajectories=(
            Trajectory(agent="agent", policy="p", turns=(turn,), segments=(segment,), reward=reward),
        ),
        started_at=1.5,
        duration_s=2.5,
        metrics={"tool_calls": 1.0},
    )


def test_what_is_written_is_read_back_in_order(tmp_path):
    written = [episode(f"e-{i}") for i in range(3)]
    with EpisodeWriter(tmp_path / "a.jsonl") as writer:
        for one in written:
            writer.append(one)
    assert list(read_episodes(tmp_path / "a.jsonl")) == written


def test_an_episode_can_be_read_before_the_writer_is_closed(tmp_path):
    with EpisodeWriter(tmp_path / "a.jsonl") as writer:
        writer.append(episode())
        assert [e.id for e in read_episodes(tmp_path / "a.jsonl")] == ["e-0"]


def test_a_second_writer_goes_on_after_a_torn_line(tmp_path):
    file = tmp_path / "a.jsonl"
    with EpisodeWriter(file) as writer:
        writer.append(episode("e-0"))
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:200])
    with EpisodeWriter(file) as writer:
        writer.append(episode("e-1"))
    assert [e.id for e in read_episodes(file)] == ["e-0", "e-1"]


def test_an_impossible_record_is_named_by_file_and_line(tmp_path):
    file = tmp_path / "a.jsonl"
    with EpisodeWriter(file) as writer:
        writer.append(episode("e-0"))
        writer.append(episode("e-1"))
    lines = file.read_text().splitlines()
    row = json.loads(lines[1])
    row["trajectories"][0]["segments"][0]["logprobs"][2] = 0.5
    file.write_text(lines[0] + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DatasetError, match=r"a\.jsonl:2: sampled token 2"):
        list(read_episodes(file))


def test_extras_that_are_not_json_are_refused_before_anything_is_written(tmp_path):
    with EpisodeWriter(tmp_path / "a.jsonl") as writer, pytest.raises(TypeError):
        writer.append(replace(episode(), info={"x": object()}))
    assert (tmp_path / "a.jsonl").read_bytes() == b""
