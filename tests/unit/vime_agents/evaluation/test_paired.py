"""Paired differences against SciPy 1.17.1, closed forms and brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_agents.evaluation.paired import paired_difference, paired_t, sign_flip_p_value

A = {"a": 0.25, "b": 0.5, "c": 1.0, "d": 0.0, "e": 0.75, "f": 0.5, "g": 0.25, "h": 1.0, "only A": 0.0}
B = {"h": 1.0, "g": 0.5, "f": 1.0, "e": 1.0, "d": 0.5, "c": 0.75, "b": 0.5, "a": 0.5, "only B": 1.0}


def test_the_t_test_equals_ttest_rel():
    found = paired_difference(A, B)
    # scipy.stats.ttest_rel(b, a) on the eight tasks of both, and its confidence_interval(0.95)
    assert found.p_value == pytest.approx(0.07960201245519759, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((-0.028840966839868948, 0.4038409668398689), abs=1e-7)
    assert (found.a, found.b, found.difference) == (4.25 / 8, 5.75 / 8, 1.5 / 8)
    assert (found.num_tasks, found.better, found.worse, found.same) == (8, 5, 1, 2)


def test_many_tasks_equal_ttest_rel():
    rng = np.random.default_rng(7)
    rng.random(41)
    low, high, p_value = paired_t(rng.normal(0.05, 0.2, 41).tolist())
    assert p_value == pytest.approx(0.053749583892955685, abs=1e-9)
    assert (low, high) == pytest.approx((-0.000950571510920678, 0.11330935994322805), abs=1e-7)


def test_without_spread_or_tasks_there_is_no_interval():
    for differences in ([], [0.5], [0.0] * 9, [1.0] * 9, [0.1 + 0.2, 0.3]):
        assert all(map(math.isnan, paired_t(differences)))
    assert math.isnan(paired_difference({"a": 1.0}, {"b": 1.0}).difference)


def test_the_exact_test_equals_scipys_permutation_test():
    differences = [B[task] - A[task] for task in A if task in B]
    # scipy.stats.permutation_test((d,), mean, permutation_type="samples", n_resamples=inf)
    assert sign_flip_p_value(differences) == pytest.approx(0.15625)
    uneven = [0.1234, -0.5, 0.77777, 0.3141, -0.2718, 0.9, 0.05, -0.333]
    assert sign_flip_p_value(uneven) == pytest.approx(0.4765625)


def test_of_rights_and_wrongs_it_is_mcnemars_exact_test():
    # 3 lost and 11 won: 2 * P(Binomial(14, 1/2) <= 3) = 2 * (1 + 14 + 91 + 364) / 2^14
    assert sign_flip_p_value([-1.0] * 3 + [1.0] * 11 + [0.0] * 86) == pytest.approx(2 * 470 / 2**14)
    assert sign_flip_p_value([1.0] * 20) == pytest.approx(2 / 2**20)
    assert sign_flip_p_value([0.0] * 5) == 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -2 / 3, -1 / 3, 0.0, 0.1, 0.25, 1 / 3, 0.7, 1.0]), max_size=9))
def test_it_is_the_share_of_sign_patterns(differences):
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    share = sum(total >= abs(sum(differences)) - 1e-9 for total in sums) / len(sums)
    assert sign_flip_p_value(differences) == pytest.approx(share)


def test_a_thousand_tasks_of_four_samples_are_counted_exactly():
    rng = np.random.default_rng(0)
    differences = (rng.integers(-4, 5, 1000) / 4).tolist()
    # The normal approximation; a changed sign moves the sum by 0.5 or more, half of which is its correction.
    z = (abs(sum(differences)) - 0.25) / math.sqrt(sum(d * d for d in differences))
    assert sign_flip_p_value(differences) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.01)


def test_too_many_values_on_no_grid_are_not_counted():
    assert sign_flip_p_value(np.random.default_rng(0).normal(size=40).tolist()) is None


def test_the_interval_and_both_p_values_keep_their_word():
    """Two policies, of which the second is better by 0.1 or not at all, on 30 tasks of 4 episodes each."""
    rng = np.random.default_rng(0)
    hits = {"interval": 0, "t": 0, "exact": 0}
    for _ in range(400):
        ability = rng.beta(2, 2, size=30) * 0.9
        a, alike, better = (rng.binomial(4, chance) / 4 for chance in (ability, ability, ability + 0.1))
        tasks = [
            dict(zip("abcdefghijklmnopqrstuvwxyz0123", v.tolist(), strict=True)) for v in (a, alike, better)
        ]
        gain = paired_difference(tasks[0], tasks[2])
        hits["interval"] += gain.low <= 0.1 <= gain.high
        hits["t"] += paired_difference(tasks[0], tasks[1]).p_value < 0.05
        hits["exact"] += (sign_flip_p_value((alike - a).tolist()) or 0.0) < 0.05
    # 3 standard errors of 400 draws at 0.05 are 0.033.
    assert 0.917 <= hits["interval"] / 400 <= 0.983
    assert hits["t"] / 400 <= 0.083
    assert hits["exact"] / 400 <= 0.083
