"""The rows that trainers are measured on, and how what was measured is summed up."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning import agreement, smoothed
from benchmarks.trainer import check_norms, summary
from benchmarks.trainer_arms.rows import (
    SHORTEST,
    conversation_batch,
    multi_turn_batch,
    one_row_per_turn,
    ragged_lengths,
)


def test_lengths_are_lognormal_within_their_bounds() -> None:
    lengths = ragged_lengths(2000, mu=5.0, sigma=1.0, longest=2048)
    assert min(lengths) >= SHORTEST
    assert max(lengths) == 2048
    assert np.log(lengths).mean() == pytest.approx(5.0, abs=0.1)


def test_rows_have_turns_of_both_sides_and_token_mean_weights() -> None:
    batch = multi_turn_batch([20, 300], 50)
    assert [len(s) for s in batch.samples] == [20, 300]
    assert sum(float(s.weights.sum()) for s in batch.samples) == pytest.approx(1.0, rel=1e-5)
    long = batch.samples[1].loss_mask
    assert not long[:75].any()
    assert np.count_nonzero(np.diff(long.astype(int)) == 1) > 3


@pytest.mark.parametrize("num_turns", [2, 5, 10, 20, 50])
def test_one_row_per_turn_costs_the_tokens_that_the_formula_says(num_turns: int) -> None:
    """P + T a + (T - 1) o merged; sum over k of P + k (a + o) + a apart, with P = 200 and a = o = 100."""
    merged = conversation_batch(num_turns, prompt=200, turn=100, vocab_size=50)
    apart = one_row_per_turn(merged)
    assert merged.num_tokens == 200 + 100 * num_turns + 100 * (num_turns - 1)
    assert apart.num_tokens == sum(200 + k * 200 + 100 for k in range(num_turns))
    expected = {2: 1.6, 5: 3.2, 10: 5.7, 20: 10.7, 50: 25.7}[num_turns]
    assert apart.num_tokens / merged.num_tokens == pytest.approx(expected, abs=0.1)


def test_every_trainable_token_is_in_one_row_with_its_weight() -> None:
    merged = multi_turn_batch([80, 40], 50)
    apart = one_row_per_turn(merged)
    assert len({s.id for s in apart.samples}) == len(apart.samples)
    assert apart.num_trainable == merged.num_trainable
    for sample in merged.samples:
        parts = [s for s in apart.samples if s.id.startswith(sample.id)]
        found = np.zeros(len(sample), np.float32)
        for part in parts:
            np.testing.assert_array_equal(part.token_ids, sample.token_ids[: len(part)])
            found[: len(part)] += part.weights
        np.testing.assert_array_equal(found, sample.weights)


def test_ratios_are_of_neighbouring_steps() -> None:
    step = {"tokens": 10, "computed": 20, "grad_norm": 1.0}
    ours = [step | {"seconds": 1.0, "cpu_s": s, "peak_mb": 100.0} for s in (1.0, 10.0, 1.0)]
    theirs = [step | {"seconds": 2.0, "cpu_s": s, "peak_mb": 200.0} for s in (2.0, 30.0, 4.0)]
    found = summary(theirs, ours)
    assert found["ours_faster"] == 3.0
    assert found["ours_faster_by_the_clock"] == 2.0
    assert found["ours_memory"] == 0.5
    assert found["tokens_per_s"] == 2.5


def test_arms_with_different_gradients_are_refused() -> None:
    with pytest.raises(SystemExit, match="same gradient"):
        check_norms({"a": [{"grad_norm": 1.0}], "b": [{"grad_norm": 1.1}]})


def test_curves_agree_where_one_is_within_the_seeds_of_the_other() -> None:
    ours = [[0.0] * 20, [0.2] * 20]
    assert smoothed(ours).shape == (2, 11)
    inside = agreement(ours, [[0.1] * 20, [0.15] * 20])
    assert inside["share of rollouts within the band"] == 1.0
    assert inside["mean difference"] == pytest.approx(0.025)
    assert agreement(ours, [[0.5] * 20])["share of rollouts within the band"] == 0.0
