"""Records that cannot be true cannot be made; those that can survive JSON bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import (
    Episode,
    Outcome,
    RewardResult,
    Segment,
    Span,
    episode_from_json,
    episode_to_json,
)
from vime_agents.errors import RecordError
from vime_agents.graded import Graded
from vime_agents.messages import user
from vime_agents.token_log import Piece, SampledTokens, TokenLog

NAN = float("nan")


def span(source: str, start: int, end: int, **fields: Any) -> Span:
    if source == "sampled":
        fields = {"trainable": True, "reason": "sampled by the policy", **fields}
    return Span(source=source, start=start, end=end, turn=0, **fields)  # type: ignore[arg-type]


def segment(ids: list[int], logprobs: list[float], *spans: Span) -> Segment:
    return Segment(token_ids=np.array(ids), logprobs=np.array(logprobs), spans=spans)


def test_the_worked_example_of_the_module_docstring() -> None:
    row = segment(
        list(range(11)),
        [NAN] * 5 + [-0.1, -0.7, -0.2] + [NAN] * 2 + [-0.4],
        span("user", 0, 5),
        span("sampled", 5, 8, weight_version=3),
        span("tool", 8, 10),
        span("sampled", 10, 11, weight_version=3),
    )
    assert np.flatnonzero(row.loss_mask).tolist() == [5, 6, 7, 10]
    assert row.logprobs[6] == np.float32(-0.7)


@pytest.mark.parametrize(
    ("ids", "logprobs", "spans", "match"),
    [
        ([1, 2], [NAN], [span("user", 0, 2)], "2 token ids"),
        ([], [], [], "num_tokens >= 1"),
        ([1, -2], [NAN, NAN], [span("user", 0, 2)], "negative token id at 1"),
        ([1, 2], [NAN, NAN], [span("user", 0, 1)], "cover 1 of 2"),
        ([1, 2, 3], [NAN] * 3, [span("user", 0, 1), span("tool", 2, 3)], "gap or overlap"),
        ([1, 2], [NAN, NAN], [span("user", 0, 1), span("sampled", 1, 2)], "sampled token 1"),
        ([1, 2], [NAN, 0.1], [span("user", 0, 1), span("sampled", 1, 2)], "must be finite and <= 0"),
        ([1, 2], [-0.1, -0.1], [span("user", 0, 1), span("sampled", 1, 2)], "carries log-probs"),
    ],
)
def test_a_segment_that_cannot_be_true_is_refused(
    ids: list[int], logprobs: list[float], spans: list[Span], match: str
) -> None:
    with pytest.raises(RecordError, match=match):
        segment(ids, logprobs, *spans)


def test_only_a_sampled_span_with_a_reason_is_trainable() -> None:
    with pytest.raises(RecordError, match="nobody sampled"):
        span("tool", 0, 1, trainable=True, reason="x")
    with pytest.raises(RecordError, match="reason"):
        span("sampled", 0, 1, reason="")
    with pytest.raises(RecordError, match="empty"):
        span("user", 1, 1)


def test_a_segment_cannot_be_changed_through_the_arrays_it_was_made_from() -> None:
    ids = np.array([1, 2], np.int32)
    row = Segment(token_ids=ids, logprobs=np.array([NAN, NAN], np.float32), spans=(span("user", 0, 2),))
    ids[0] = 9
    assert row.token_ids.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        row.token_ids[0] = 9


def test_a_reward_has_a_value_exactly_when_it_can_be_trusted() -> None:
    assert RewardResult(value=0.5).ok
    for fields in ({"value": None}, {"value": 1.0, "status": "error"}, {"value": NAN}):
        with pytest.raises(RecordError):
            RewardResult(**fields)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="components"):
        RewardResult(value=1.0, components={"a": 1.0})


def test_an_outcome_has_a_cause_exactly_when_it_failed() -> None:
    assert Outcome(kind="terminated", stop="done").status == "ok"
    assert Outcome(kind="truncated", stop="max_turns").status == "truncated"
    assert Outcome(kind="failed", stop="error", cause="sandbox").status == "error:sandbox"
    for fields in (
        {"kind": "failed", "cause": None},
        {"kind": "terminated", "cause": "env"},
        {"kind": "failed", "cause": "gremlins"},
    ):
        with pytest.raises(RecordError):
            Outcome(stop="x", **fields)  # type: ignore[arg-type]


def round_trip(episode: Episode) -> Episode:
    return episode_from_json(json.loads(json.dumps(episode_to_json(episode))))


def test_an_episode_survives_json_bit_for_bit() -> None:
    episode = make_episode(num_turns=3)
    assert round_trip(episode) == episode
    failed = make_episode(reward=None, cause="engine")
    assert round_trip(failed) == failed
    assert episode_to_json(failed)["status"] == "error:engine"
    graded = Graded(stop="done", terminated=True, turn=3, messages=(user("q"),), state={"found": [1]})
    assert round_trip(replace(episode, graded=graded)).graded == graded
    assert "graded" not in episode_to_json(episode)  # as in files of releases that knew no such thing


def test_a_turn_says_that_its_reply_is_an_earlier_one_and_else_nothing_of_it() -> None:
    episode = make_episode(num_turns=2)
    (trajectory,) = episode.trajectories
    first, second = trajectory.turns
    kept = replace(
        episode, trajectories=(replace(trajectory, turns=(replace(first, from_cache=True), second)),)
    )
    assert round_trip(kept) == kept
    told, untold = episode_to_json(kept)["trajectories"][0]["turns"]
    assert told["from_cache"] is True
    assert "from_cache" not in untold  # so that earlier releases can read it


@given(st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32), min_size=1))
def test_log_probs_survive_json_to_the_last_bit(values: list[float]) -> None:
    log = TokenLog()
    log.extend([Piece(token_ids=(1,), source="user")], turn=0)
    tokens = SampledTokens(
        token_ids=(2,) * len(values), logprobs=tuple(values), versions=((0, 0, len(values)),)
    )
    log.append_sampled(tokens, turn=0)
    episode = make_episode(log=log)
    assert round_trip(episode) == episode


def test_another_schema_or_a_missing_field_is_an_error_that_names_it() -> None:
    data = episode_to_json(make_episode())
    with pytest.raises(RecordError, match="schema 99"):
        episode_from_json(data | {"schema_version": 99})
    del data["group_id"]
    with pytest.raises(RecordError, match="group_id"):
        episode_from_json(data)
