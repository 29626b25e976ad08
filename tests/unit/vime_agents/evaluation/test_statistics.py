"""Intervals and pass@k against published values, closed forms and brute force."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.evaluation.statistics import (
    clustered_standard_error,
    mean_interval,
    mean_pass_at_k,
    pass_at_k,
    t_quantile_975,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "num", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3 (Wilson's score).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_the_published_intervals(successes, num, low, high):
    assert wilson(successes / num, num) == pytest.approx((low, high), abs=5e-5)


@given(num=st.integers(1, 400), data=st.data())
def test_wilson_bounds_solve_the_score_equation(num, data):
    share = data.draw(st.integers(0, num)) / num
    for bound in wilson(share, num):
        # The bound is where the share is exactly z standard errors away.
        assert (share - bound) ** 2 == pytest.approx(
            1.959963984540054**2 * bound * (1 - bound) / num, abs=1e-9
        )


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # Fisher and Yates' table, 3 decimals.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_t_quantiles_equal_the_table(degrees, expected):
    assert t_quantile_975(degrees) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("degrees", [1, 2, 7, 24, 299, 300, 301, 5000])
def test_t_quantiles_leave_975_per_mille_below_by_numerical_integration(degrees):
    t = t_quantile_975(degrees)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    x = np.linspace(0, t, 200_001)
    density = np.exp(log_scale - (degrees + 1) / 2 * np.log1p(x * x / degrees))
    assert 0.5 + np.trapezoid(density, x) == pytest.approx(0.975, abs=1e-8)


def test_the_clustered_error_by_hand():
    # Mean 3; residual sums -3 and 3; sqrt(2/1 * 18) / 4.
    assert clustered_standard_error([1, 2, 3, 6], ["a", "a", "b", "b"]) == pytest.approx(1.5)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_with_one_episode_a_task_it_is_the_standard_error_of_the_mean(values):
    expected = statistics.stdev(values) / math.sqrt(len(values))
    assert clustered_standard_error(values, range(len(values))) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10), st.integers(2, 5))
def test_copies_of_the_same_episode_tell_nothing_new(values, copies):
    one = clustered_standard_error(values, range(len(values)))
    many = clustered_standard_error(values * copies, list(range(len(values))) * copies)
    assert many == pytest.approx(one, abs=1e-9)


def test_rewards_between_0_and_1_get_a_t_interval_by_hand():
    interval = mean_interval([1, 2, 3, 6], ["a", "a", "b", "b"])
    assert (interval.mean, interval.method) == (3.0, "clustered-t")
    assert (interval.low, interval.high) == pytest.approx((3 - 12.7062 * 1.5, 3 + 12.7062 * 1.5), abs=1e-3)


def test_binary_rewards_of_distinct_tasks_get_wilsons_interval():
    interval = mean_interval([1.0] * 8 + [0.0] * 2, range(10))
    # R: binom::binom.confint(8, 10, methods = "wilson")
    assert (interval.low, interval.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert (interval.mean, interval.method) == (0.8, "wilson")


def test_binary_rewards_that_are_alike_within_a_task_count_about_once_a_task():
    # 10 tasks, each 4 equal outcomes. Clustered variance 10/9 * 10 * (4 * .5)^2 / 40^2 = 1/36, of independent
    # episodes .25/40 = 1/160: inflated 40/9 times, so 40 episodes tell what 9 would.
    values = [float(task % 2) for task in range(10) for _ in range(4)]
    tasks = [task for task in range(10) for _ in range(4)]
    interval = mean_interval(values, tasks)
    assert (interval.low, interval.high) == pytest.approx(wilson(0.5, 9.0))


def test_perfect_scores_do_not_pretend_that_samples_of_a_task_are_independent():
    interval = mean_interval([1.0] * 40, [task for task in range(10) for _ in range(4)])
    assert (interval.low, interval.high) == pytest.approx((1 / (1 + 1.959964**2 / 10), 1.0))


def test_no_data_and_one_task_give_no_interval():
    nothing = mean_interval([], [])
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.low)
    one = mean_interval([0.25, 0.5], ["a", "a"])
    assert one.mean == 0.375
    assert math.isnan(one.low)
    assert math.isnan(one.high)


def test_a_95_percent_interval_holds_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(0)
    hits = {"binary": 0, "continuous": 0}
    tasks = np.repeat(np.arange(30), 4)
    for _ in range(400):
        ability = rng.beta(2, 2, size=30)  # tasks differ: mean 0.5
        binary = (rng.random(120) < ability[tasks]).astype(float)
        continuous = ability[tasks] + rng.normal(0, 0.1, 120)
        for name, values in (("binary", binary), ("continuous", continuous)):
            interval = mean_interval(values.tolist(), tasks.tolist())
            hits[name] += interval.low <= 0.5 <= interval.high
    # 3 standard errors of 400 draws at 0.95 are 0.033. An interval that takes the episodes for independent
    # would hold the truth 0.875 and 0.67 of the time here.
    assert 0.917 <= hits["binary"] / 400 <= 0.983
    assert 0.917 <= hits["continuous"] / 400 <= 0.983


@pytest.mark.parametrize(
    ("num", "right", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 4), (4, 4, 2), (4, 0, 3), (5, 3, 3)]
)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(num, right, k):
    """Plan 15."""
    outcomes = [1] * right + [0] * (num - right)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(num, right, k) == pytest.approx(sum(map(max, subsets)) / len(subsets))


def test_pass_at_k_wants_enough_episodes():
    with pytest.raises(ValueError, match="k=3, n=2"):
        pass_at_k(2, 1, 3)


def test_mean_pass_at_k_is_over_tasks_with_enough_episodes():
    values, tasks = [1.0, 0.0, 0.0, 0.0, 1.0], ["a", "a", "b", "b", "c"]
    assert mean_pass_at_k(values, tasks, 1) == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert mean_pass_at_k(values, tasks, 2) == pytest.approx((1.0 + 0.0) / 2)
    assert mean_pass_at_k(values, tasks, 3) is None
    assert mean_pass_at_k([0.5, 1.0], ["a", "b"], 1) is None
    assert mean_pass_at_k([], [], 1) is None
