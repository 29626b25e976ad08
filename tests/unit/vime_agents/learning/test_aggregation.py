"""Loss weights: each aggregation's value on hand-made rows, and invariance to splitting."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError, UnknownIdError
from vime_agents.learning.aggregation import AGGREGATIONS, loss_weights

ROWS = [[1, 2, 3, 4], [10, 20, 0, 0], [6, 0, 0, 0], [7, 7, 7, 7]]
MASKS = [[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def weigh(
    masks: list[np.ndarray], episodes: list[Hashable], aggregation: str, groups: list[Hashable] | None = None
) -> list[np.ndarray]:
    norm_length = 8 if aggregation == "seq-mean-token-sum-norm" else None
    groups = episodes if groups is None else groups
    return loss_weights(masks, episodes, aggregation, group_ids=groups, norm_length=norm_length)


def total(aggregation: str, episodes: list[Hashable]) -> float:
    masks = [np.array(m, bool) for m in MASKS]
    weights = weigh(masks, episodes, aggregation)
    return float(sum((w * np.array(f)).sum() for w, f in zip(weights, ROWS, strict=True)))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 43 / 6),  # sums 7 + 30 + 6 over 6 tokens
        ("seq-mean-token-mean", (7 / 3 + 15 + 6) / 3),  # three rows have trainable tokens
        ("seq-mean-token-sum", 43 / 3),
        ("seq-mean-token-sum-norm", 43 / 3 / 8),  # 8 whatever the lengths, padding or not
        ("episode-mean", (37 / 5 + 6) / 2),  # rows 0 and 1 are one episode; the empty one does not count
    ],
)
def test_the_loss_of_hand_made_rows(aggregation: str, expected: float) -> None:
    """Plan 40."""
    assert total(aggregation, [0, 0, 1, 2]) == pytest.approx(expected, rel=1e-6)


def test_under_episode_mean_a_fan_out_counts_once() -> None:
    """Plan 42."""
    masks = [np.ones(4, bool), np.ones(4, bool), np.ones(4, bool)]
    weights = loss_weights(masks, ["a", "a", "b"], "episode-mean")
    assert [float(w.sum()) for w in weights] == [0.25, 0.25, 0.5]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=8), st.randoms())
def test_weights_belong_to_the_token_not_to_its_place(rows: list[list[bool]], random: object) -> None:
    masks = [np.array(r) for r in rows]
    episodes = [i // 2 for i in range(len(rows))]
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for aggregation in AGGREGATIONS:
        plain = weigh(masks, episodes, aggregation)
        shuffled = weigh([masks[i] for i in order], [episodes[i] for i in order], aggregation)
        for position, index in enumerate(order):
            np.testing.assert_array_equal(shuffled[position], plain[index])


def test_without_trainable_tokens_every_weight_is_zero() -> None:
    for aggregation in AGGREGATIONS:
        (weights,) = weigh([np.zeros(3, bool)], ["e"], aggregation)
        assert weights.tolist() == [0, 0, 0]


def test_an_unknown_aggregation_suggests_the_nearest() -> None:
    with pytest.raises(UnknownIdError, match="Did you mean 'token-mean'"):
        loss_weights([], [], "tokenmean")


def test_under_prompt_mean_every_task_counts_once() -> None:
    """Four episodes of the first task, one of the second, which ran longest: half each."""
    masks = [np.ones(n, bool) for n in (1, 2, 3, 4, 10)]
    weights = weigh(masks, list("abcde"), "prompt-mean", groups=["p", "p", "p", "p", "q"])
    assert float(sum(w.sum() for w in weights[:4])) == pytest.approx(0.5)
    assert float(weights[4].sum()) == pytest.approx(0.5)
    np.testing.assert_allclose(weights[0], [0.05])


def test_one_row_a_turn_makes_an_episode_heavier_under_seq_mean_and_not_under_episode_mean() -> None:
    """Ten rows of one token against one row of one: ten elevenths of the loss, or half."""
    masks, episodes = [np.ones(1, bool)] * 11, [*["long"] * 10, "short"]
    shares = {
        name: float(sum(w.sum() for w in weigh(masks, episodes, name)[:10]))
        for name in ("seq-mean-token-mean", "episode-mean")
    }
    assert shares == {"seq-mean-token-mean": pytest.approx(10 / 11), "episode-mean": pytest.approx(0.5)}


def test_padding_a_row_changes_no_weight() -> None:
    """A norm by the padded width would."""
    masks = [np.array([0, 1, 1], bool), np.array([1], bool)]
    padded = [np.concatenate([m, np.zeros(20, bool)]) for m in masks]
    for aggregation in AGGREGATIONS:
        plain = weigh(masks, ["a", "b"], aggregation)
        for short, long in zip(plain, weigh(padded, ["a", "b"], aggregation), strict=True):
            np.testing.assert_array_equal(long[: len(short)], short)


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=8),
    st.sampled_from([a for a in AGGREGATIONS if "sum" not in a]),
)
def test_the_weights_of_a_mean_sum_to_one(rows: list[list[bool]], aggregation: str) -> None:
    masks = [np.array(r) for r in rows]
    weights = weigh(masks, [i // 2 for i in range(len(rows))], aggregation)
    expected = 1.0 if any(m.any() for m in masks) else 0.0
    assert float(sum(w.sum() for w in weights)) == pytest.approx(expected, abs=1e-5)


def test_the_mean_of_micro_batch_means_would_be_another_number() -> None:
    """Plan 41: Rows {0, 1} and {2, 3}: (37 / 5 + 6) / 2 = 6.7 instead of 43 / 6."""
    masks = [np.array(m, bool) for m in MASKS]
    parts = []
    for chosen in ([0, 1], [2, 3]):
        weights = weigh([masks[i] for i in chosen], chosen, "token-mean")
        parts.append(sum(float((w * np.array(ROWS[i])).sum()) for w, i in zip(weights, chosen, strict=True)))
    assert sum(parts) / 2 == pytest.approx(6.7)
    assert total("token-mean", [0, 0, 1, 2]) == pytest.approx(43 / 6)


@pytest.mark.parametrize(
    ("aggregation", "norm_length", "told"),
    [
        ("seq-mean-token-sum-norm", None, "needs one"),
        ("token-mean", 8, "no other uses it"),
        ("prompt-mean", None, "group_ids"),
    ],
)
def test_what_an_aggregation_needs_is_asked_for(aggregation: str, norm_length: int | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        loss_weights([np.ones(2, bool)], ["e"], aggregation, norm_length=norm_length)
