"""The prefix rule: what extends is merged, what does not forks, and no token is trained twice or lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import RecordError
from vime_agents.token_log import Piece, SampledTokens, TokenLog


def sampled(*ids: int, version: int | None = 0) -> SampledTokens:
    return SampledTokens(
        token_ids=ids, logprobs=tuple(-0.1 * i for i in ids), versions=((version, 0, len(ids)),)
    )


def prompt(*ids: int) -> list[Piece]:
    return [Piece(token_ids=ids, source="user")]


def test_calls_become_rows_by_the_prefix_rule() -> None:
    """Plan 59."""
    log = TokenLog()
    calls = [((1, 2), (3, 4)), ((1, 2, 3, 4, 5), (6,)), ((1, 2, 3, 9, 5, 6, 7), (8,))]
    for turn, (asked, answered) in enumerate(calls):
        log.record_prompt(prompt(*asked), turn=turn)
        log.append_sampled(sampled(*answered), turn=turn)
    first, second = log.segments()
    assert first.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert first.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 0, 1]
    assert second.token_ids.tolist() == [1, 2, 3, 9, 5, 6, 7, 8]
    assert second.loss_mask.astype(int).tolist() == [0] * 7 + [1]
    assert (log.num_forks, log.num_sampled) == (1, 4)
    np.testing.assert_allclose(first.logprobs[first.loss_mask], [-0.3, -0.4, -0.6], rtol=1e-6)
    assert np.isnan(first.logprobs[~first.loss_mask]).all()


def test_an_extension_keeps_the_source_of_every_piece_of_its_tail() -> None:
    log = TokenLog()
    log.extend([Piece(token_ids=(1, 2), source="system")], turn=0)
    log.append_sampled(sampled(3), turn=0)
    pieces = [
        Piece(token_ids=(1, 2), source="system"),
        Piece(token_ids=(3, 4), source="assistant"),
        Piece(token_ids=(5,), source="tool"),
        Piece(token_ids=(6, 7), source="template"),
    ]
    log.record_prompt(pieces, turn=1)
    log.append_sampled(sampled(8), turn=1)
    (segment,) = log.segments()
    assert [(s.source, s.start, s.end, s.turn) for s in segment.spans] == [
        ("system", 0, 2, 0),
        ("sampled", 2, 3, 0),
        ("assistant", 3, 4, 1),
        ("tool", 4, 5, 1),
        ("template", 5, 7, 1),
        ("sampled", 7, 8, 1),
    ]


def test_a_generation_over_a_weight_update_keeps_both_versions() -> None:
    log = TokenLog()
    log.extend(prompt(1), turn=0)
    tokens = SampledTokens(token_ids=(2, 3, 4), logprobs=(-0.1, -0.2, -0.3), versions=((4, 0, 1), (5, 1, 3)))
    log.append_sampled(tokens, turn=0)
    (segment,) = log.segments()
    assert [(s.weight_version, len(s)) for s in segment.spans if s.source == "sampled"] == [(4, 1), (5, 2)]


def test_a_frozen_policys_tokens_are_recorded_and_not_trained() -> None:
    log = TokenLog()
    log.extend(prompt(1), turn=0)
    log.append_sampled(sampled(2, 3), turn=0, trainable=False)
    (segment,) = log.segments()
    assert not segment.loss_mask.any()
    assert np.isfinite(segment.logprobs[1:]).all()
    assert "not trained" in segment.spans[1].reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.5])
def test_a_log_prob_that_cannot_be_true_is_refused_and_nothing_is_kept(value: float) -> None:
    """Plan 62."""
    log = TokenLog()
    log.extend(prompt(1), turn=0)
    bad = SampledTokens(token_ids=(2, 3), logprobs=(-0.1, value), versions=((0, 0, 2),))
    with pytest.raises(RecordError, match="turn 0: sampled token 1"):
        log.append_sampled(bad, turn=0)
    assert (log.token_ids, log.num_sampled) == ([1], 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": (1, 2), "logprobs": (-0.1,), "versions": ((0, 0, 2),)},
        {"token_ids": (1, 2), "logprobs": (-0.1, -0.2), "versions": ((0, 0, 1),)},
        {"token_ids": (1, 2), "logprobs": (-0.1, -0.2), "versions": ((0, 0, 1), (1, 0, 2))},
        {"token_ids": (1, 2), "logprobs": (-0.1, -0.2), "versions": ((0, 0, 3),)},
    ],
)
def test_ids_log_probs_and_versions_must_agree(fields: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        SampledTokens(**fields)  # type: ignore[arg-type]


def test_sampled_tokens_need_a_prompt_and_enter_by_one_door() -> None:
    with pytest.raises(RecordError, match="prompt"):
        TokenLog().append_sampled(sampled(1), turn=0)
    with pytest.raises(RecordError, match="append_sampled"):
        TokenLog().extend([Piece(token_ids=(1,), source="sampled")], turn=0)


TURNS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=4),  # what the env says
        st.lists(st.integers(1, 9), min_size=1, max_size=4),  # what the policy samples
        st.sampled_from(["extend", "compact", "edit"]),
    ),
    min_size=1,
    max_size=8,
)


@given(TURNS)
def test_every_sampled_token_is_trained_exactly_once_whatever_a_harness_does(
    turns: list[tuple[list[int], list[int], str]],
) -> None:
    """Plan 60."""
    log = TokenLog()
    for turn, (said, answered, kind) in enumerate(turns):
        held = log.token_ids
        if kind == "compact":
            held = held[len(held) // 2 :]
        elif kind == "edit" and held:
            held[0] += 1
        log.record_prompt(prompt(*held, *said), turn=turn)
        assert log.token_ids == [*held, *said]
        log.append_sampled(sampled(*answered), turn=turn)
    trained = sum(int(s.loss_mask.sum()) for s in log.segments())
    assert trained == log.num_sampled == sum(len(a) for _, a, _ in turns)
    flat = [t for s in log.segments() for t in s.token_ids[s.loss_mask].tolist()]
    assert flat == [t for _, answered, _ in turns for t in answered]
