"""The largest differencing method."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_trainers.batching.balance import balanced_parts


def sums(costs: list[float], num_parts: int) -> list[float]:
    return sorted(sum(costs[i] for i in part) for part in balanced_parts(costs, num_parts))


def test_the_example_of_karmarkar_and_karp() -> None:
    """8 - 7 = 1, 6 - 5 = 1, 4 - 1 = 3, 3 - 1 = 2: so 14 and 16, where the greedy way comes to 17 and 13."""
    assert sums([8, 7, 6, 5, 4], 2) == [14, 16]


def test_in_three() -> None:
    assert sums([5, 5, 5, 5, 5, 5], 3) == [10, 10, 10]
    assert sums([9, 7, 5, 4, 3, 2], 3) == [9, 10, 11]


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 6))
def test_every_number_is_in_one_part(costs: list[int], num_parts: int) -> None:
    parts = balanced_parts(costs, num_parts)
    assert len(parts) == num_parts
    assert sorted(itertools.chain(*parts)) == list(range(len(costs)))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(2, 3))
def test_no_part_is_larger_than_four_thirds_of_the_best(costs: list[int], num_parts: int) -> None:
    """Against all ways to cut; the method's bound is below that of the greedy one (4/3 - 1/(3k))."""
    best = min(
        max(sum(c for c, p in zip(costs, choice, strict=True) if p == part) for part in range(num_parts))
        for choice in itertools.product(range(num_parts), repeat=len(costs))
    )
    assert max(sums(costs, num_parts)) <= best * (4 / 3 - 1 / (3 * num_parts)) + 1e-9


def test_equal_numbers_give_the_same_parts_every_time() -> None:
    assert balanced_parts([1.0] * 7, 3) == balanced_parts([1.0] * 7, 3)


def test_lognormal_costs_over_eight_ranks_are_within_a_thousandth() -> None:
    import numpy as np

    costs = np.random.default_rng(0).lognormal(5, 1, 256).tolist()
    found = sums(costs, 8)
    assert found[-1] / (sum(found) / 8) == pytest.approx(1.0, abs=1e-3)
