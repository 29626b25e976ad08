"""Which row is in which micro-batch of which rank: counts alone, no clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_agents.errors import ConfigError
from vime_trainers.batching.cost import RowCost
from vime_trainers.batching.plan import alignment, longest_row, plan
from vime_trainers.batching.rows import Row, rows_of_tokens

LIMIT = 2048
SMOLLM2 = RowCost(per_token=2 * 106.2e6, per_pair=2.0 * 30 * 2 * 576, per_prediction=2.0 * 576 * 49152)
"""SmolLM2-135M: 106.2 million entries in the layers' matrices."""


def rows_of_lengths(lengths: list[int]) -> list[Row]:
    return rows_of_tokens([np.zeros(length + 1, np.int32) for length in lengths])


def lognormal(num_rows: int, seed: int, sigma: float = 1.0) -> list[int]:
    """Lengths whose logarithm has mean 5, cut at 2048: answers of tens of tokens, and a tail of long ones."""
    lengths = np.random.default_rng(seed).lognormal(5, sigma, num_rows)
    return np.clip(lengths, 1, LIMIT).astype(int).tolist()


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1.0, 0.0]),
)
def test_every_row_is_planned_once_within_the_budget_and_ranks_have_equal_counts(
    lengths: list[int], num_ranks: int, cp_size: int, quadratic: float
) -> None:
    align = alignment(cp_size)
    cost = RowCost(per_token=1.0, per_pair=quadratic, per_prediction=0.5)
    found = plan(rows_of_lengths(lengths), max_tokens=32, num_ranks=num_ranks, align=align, cost=cost)
    assert len(found.ranks) == num_ranks
    assert {len(rank) for rank in found.ranks} == {found.num_micro_batches}
    placed = sorted(i for rank in found.ranks for micro in rank for i in micro)
    assert placed == [i for i, length in enumerate(lengths) if length]
    for rank in found.ranks:
        for micro in rank:
            sizes = [-(-lengths[i] // align) * align for i in micro]
            assert sum(sizes) <= 32
            assert sizes == sorted(sizes, reverse=True)


def test_a_row_over_the_budget_is_refused_with_its_name_and_the_flags() -> None:
    with pytest.raises(ConfigError, match=r"row 1 needs 9 .*--max-tokens-per-gpu.*--oversized-rows"):
        plan(rows_of_lengths([3, 9]), max_tokens=8)


def test_a_row_that_padding_alone_makes_too_long_is_refused_too() -> None:
    assert plan(rows_of_lengths([8]), max_tokens=8, align=4).num_micro_batches == 1
    with pytest.raises(ConfigError, match="needs 12 tokens"):
        plan(rows_of_lengths([9]), max_tokens=10, align=4)


@pytest.mark.parametrize("align", [1, 4, 8])
def test_the_longest_row_fits_and_one_more_token_does_not(align: int) -> None:
    tokens = longest_row(30, align)
    assert plan(rows_of_lengths([tokens - 1]), max_tokens=30, align=align).num_micro_batches == 1
    with pytest.raises(ConfigError):
        plan(rows_of_lengths([tokens]), max_tokens=30, align=align)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5])
def test_packs_are_nearly_full(seed: int, sigma: float) -> None:
    """As few micro-batches as can hold the tokens; all rows padded to the longest are mostly padding."""
    lengths = lognormal(256, seed, sigma)
    found = plan(rows_of_lengths(lengths), max_tokens=LIMIT)
    assert sum(lengths) / (found.num_micro_batches * LIMIT) >= 0.95
    assert found.num_micro_batches == math.ceil(sum(lengths) / LIMIT)
    assert found.efficiency == 1.0
    padded = sum(lengths) / (256 * max(lengths))
    assert padded < 0.5


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_cost_the_same_and_need_no_more_micro_batches_than_their_tokens_do(
    seed: int, sigma: float, num_ranks: int
) -> None:
    lengths = lognormal(512, seed, sigma)
    rows = rows_of_lengths(lengths)
    found = plan(rows, max_tokens=LIMIT, num_ranks=num_ranks, cost=SMOLLM2)
    assert found.imbalance <= 1.05
    loads = [sum(SMOLLM2(lengths[i], lengths[i]) for m in rank for i in m) for rank in found.ranks]
    assert found.imbalance == pytest.approx(max(loads) / np.mean(loads))
    # Ranks of equal cost are not of equal length; one more than the mean's is the most that takes.
    assert found.num_micro_batches <= math.ceil(sum(lengths) / num_ranks / LIMIT) + 1
    in_turns = [sum(SMOLLM2(n, n) for n in lengths[rank::num_ranks]) for rank in range(num_ranks)]
    assert max(in_turns) / np.mean(in_turns) > found.imbalance


def test_padding_for_context_parallelism_is_counted_and_small() -> None:
    lengths = lognormal(256, 0)
    found = plan(rows_of_lengths(lengths), max_tokens=2 * LIMIT, align=alignment(2))
    aligned = sum(-(-n // 4) * 4 for n in lengths)
    assert found.efficiency == pytest.approx(sum(lengths) / aligned)
    assert found.efficiency >= 0.95


def test_a_long_row_weighs_more_than_as_many_tokens_in_short_ones() -> None:
    """One row of 1000 against 1000 of 1: with attention alone the ranks are far from equal in length."""
    rows = rows_of_lengths([40, 40] + [10] * 16)
    attention = RowCost(per_token=0.0, per_pair=1.0, per_prediction=0.0)
    found = plan(rows, max_tokens=1000, num_ranks=3, cost=attention)
    # 820 for a row of 40, 55 for one of 10: two ranks hold a long row and one or none, the third the rest.
    counts = sorted(len(rank[0]) for rank in found.ranks)
    assert counts == [1, 2, 15] or counts == [2, 2, 14]


def test_micro_batches_of_a_rank_are_even_and_the_costliest_comes_first() -> None:
    (rank,) = plan(rows_of_lengths([8, 7, 3, 2, 2]), max_tokens=12).ranks
    assert [sum([8, 7, 3, 2, 2][i] for i in micro) for micro in rank] == [11, 11]
    (rank,) = plan(rows_of_lengths([9, 3, 7]), max_tokens=10).ranks
    assert rank == ((2, 1), (0,)) or rank == ((0,), (2, 1))
    (rank,) = plan(rows_of_lengths([5, 9]), max_tokens=10).ranks
    assert rank == ((1,), (0,))


def test_a_rank_without_rows_has_empty_micro_batches() -> None:
    assert plan(rows_of_lengths([4]), max_tokens=4, num_ranks=2).ranks == (((0,),), ((),))
    assert plan([], max_tokens=4, num_ranks=2).ranks == (((),), ((),))


def test_the_plan_is_a_function_of_the_rows_alone() -> None:
    lengths = lognormal(64, 3)
    plans = [plan(rows_of_lengths(lengths), max_tokens=LIMIT, num_ranks=4, cost=SMOLLM2) for _ in range(2)]
    assert plans[0] == plans[1]
