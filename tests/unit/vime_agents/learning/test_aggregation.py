"""Loss weights: each aggregation's value on hand-made rows, and invariance to splitting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import UnknownIdError
from vime_agents.learning.aggregation import AGGREGATIONS, loss_weights

ROWS = [[1, 2, 3, 4], [10, 20, 0, 0], [6, 0, 0, 0], [7, 7, 7, 7]]
MASKS = [[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def total(aggregation: str, episodes: list[int]) -> float:
    masks = [np.array(m, bool) for m in MASKS]
    weights = loss_weights(masks, episodes, aggregation)
    return float(sum((w * np.array(f)).sum() for w, f in zip(weights, ROWS, strict=True)))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", 43 / 6),  # sums 7 + 30 + 6 over 6 tokens
        ("seq-mean-token-mean", (7 / 3 + 15 + 6) / 3),  # three rows have trainable tokens
        ("seq-mean-token-sum", 43 / 3),
        ("episode-mean", (37 / 5 + 6) / 2),  # rows 0 and 1 are one episode; the empty one does not count
    ],
)
def test_the_loss_of_hand_made_rows(aggregation: str, expected: float) -> None:
    assert total(aggregation, [0, 0, 1, 2]) == pytest.approx(expected, rel=1e-6)


def test_under_episode_mean_a_fan_out_counts_once() -> None:
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
        plain = loss_weights(masks, episodes, aggregation)
        shuffled = loss_weights([masks[i] for i in order], [episodes[i] for i in order], aggregation)
        for position, index in enumerate(order):
            np.testing.assert_array_equal(shuffled[position], plain[index])


def test_without_trainable_tokens_every_weight_is_zero() -> None:
    for aggregation in AGGREGATIONS:
        (weights,) = loss_weights([np.zeros(3, bool)], ["e"], aggregation)
        assert weights.tolist() == [0, 0, 0]


def test_an_unknown_aggregation_suggests_the_nearest() -> None:
    with pytest.raises(UnknownIdError, match="Did you mean 'token-mean'"):
        loss_weights([], [], "tokenmean")
