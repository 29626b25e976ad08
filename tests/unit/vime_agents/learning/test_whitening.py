"""Whitening over all rows of an update together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.learning.advantages import whiten

TOKENS = st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=6)


def test_rows_are_whitened_together_and_not_each_for_itself() -> None:
    """Plan 13: Two rows of two tokens: each alone would become +-0.707107."""
    rows, masks = [np.array([1.0, 2.0]), np.array([5.0, 6.0])], [np.ones(2, bool)] * 2
    found = np.concatenate(whiten(rows, masks))
    values = np.array([1.0, 2, 5, 6])
    np.testing.assert_allclose(found, (values - 3.5) / np.sqrt(17 / 3 + 1e-8))


@given(st.lists(TOKENS, min_size=1, max_size=6))
def test_trainable_tokens_get_mean_zero_and_variance_one_and_the_others_zero(
    data: list[list[tuple[float, bool]]],
) -> None:
    rows = [np.array([x for x, _ in row]) for row in data]
    masks = [np.array([m for _, m in row]) for row in data]
    whole = whiten(rows, masks)
    kept = np.concatenate([w[m] for w, m in zip(whole, masks, strict=True)])
    before = np.concatenate([r[m] for r, m in zip(rows, masks, strict=True)])
    assert all(not w[~m].any() for w, m in zip(whole, masks, strict=True))
    if kept.size > 1 and before.std() > 0.01:
        assert abs(kept.mean()) < 1e-9
        np.testing.assert_allclose(kept.var(ddof=1), 1, rtol=1e-3)
    # Cut into one row a token, an empty row among them: the same numbers.
    cut = [r[i : i + 1] for r in rows for i in range(len(r))]
    cut_masks = [m[i : i + 1] for m in masks for i in range(len(m))]
    again = whiten([*cut, np.zeros(0)], [*cut_masks, np.zeros(0, bool)])
    np.testing.assert_allclose(np.concatenate(again), np.concatenate(whole), atol=1e-9)


def test_equal_advantages_and_a_single_one_become_exactly_zero() -> None:
    assert whiten([np.full(7, 0.1)], [np.ones(7, bool)])[0].tolist() == [0.0] * 7
    assert whiten([np.array([3.0, 9.0])], [np.array([True, False])])[0].tolist() == [0.0, 0.0]


def test_junk_at_masked_places_is_not_read() -> None:
    found = whiten([np.array([1.0, np.nan, 3.0, np.inf])], [np.array([1, 0, 1, 0], bool)])[0]
    np.testing.assert_allclose(found, [-np.sqrt(0.5), 0, np.sqrt(0.5), 0], rtol=1e-6)


def test_scaling_alone_keeps_every_sign() -> None:
    """Taking the mean away makes the lesser of two successes bad; scaling does not."""
    row, mask = np.array([0.5, 1.0]), np.ones(2, bool)
    assert whiten([row], [mask])[0][0] < 0
    assert (whiten([row], [mask], shift=False)[0] > 0).all()
