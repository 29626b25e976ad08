"""The probe finds the worst position, and nothing that is not finite passes."""

from __future__ import annotations

import math

import pytest

from vime_trainers.sync.probe import probe_tokens, worst_difference


def test_the_probe_is_fixed_and_spread_over_the_vocabulary():
    tokens = probe_tokens(49152)
    assert tokens == probe_tokens(49152)
    assert len(tokens) == 64
    assert len(set(tokens)) == 64
    # Every eighth of the vocabulary holds its share of the 64, give or take one.
    counts = [sum(1 for t in tokens if t * 8 // 49152 == part) for part in range(8)]
    assert set(counts) <= {7, 8, 9}
    assert tokens[0] == int(0.6180339887498949 * 49152)


@pytest.mark.parametrize("vocab_size", [2, 512, 151_936])
def test_every_token_is_in_the_vocabulary(vocab_size: int):
    assert all(0 <= t < vocab_size for t in probe_tokens(vocab_size))


def test_the_worst_position_is_named_with_both_values():
    worst = worst_difference([10, 11, 12], [math.nan, -1.0, -3.0], [math.nan, -1.25, -1.0])
    assert (worst.position, worst.token_id) == (2, 12)
    assert (worst.engine_logprob, worst.trainer_logprob) == (-3.0, -1.0)
    assert worst.value == 2.0


def test_the_first_entry_counts_for_nothing():
    assert worst_difference([10, 11], [-50.0, -1.0], [math.nan, -1.0]).value == 0.0


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_what_is_not_finite_is_infinitely_wrong(broken: float):
    assert worst_difference([1, 2, 3], [math.nan, broken, -1.0], [math.nan, broken, -1.0]).value == math.inf


def test_lists_of_other_lengths_are_not_compared():
    with pytest.raises(ValueError, match="3 tokens has 2 log-probs of the engine and 3"):
        worst_difference([1, 2, 3], [0.0, 0.0], [0.0, 0.0, 0.0])
