import math

import pytest
import torch

from vime_trainers.losses.rows import Rows

VALUES = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
ROWS = Rows(torch.tensor([0, 2, 2, 0]), 3)


def test_every_token_gets_the_sum_of_its_row():
    assert ROWS.sum(VALUES).tolist() == [9, 6, 6, 9]
    assert Rows.single(VALUES).sum(VALUES).tolist() == [15] * 4


def test_a_mean_is_over_trainable_tokens_and_reads_no_others():
    values = VALUES.clone()
    values[3] = math.nan
    mask = torch.tensor([True, True, True, False])
    assert ROWS.mean(values, mask).tolist() == [1, 3, 3, 1]
    assert ROWS.mean(VALUES, torch.zeros(4, dtype=torch.bool)).tolist() == [0] * 4


def test_a_sum_carries_no_gradient():
    assert not ROWS.sum(VALUES.clone().requires_grad_()).requires_grad


def test_parts_of_rows_on_other_ranks_are_added():
    """Context parallel: the other rank holds 10 of row 0, nothing of row 1 and 100 of row 2."""

    def all_reduce(totals):
        totals += torch.tensor([10.0, 0.0, 100.0], dtype=torch.float64)

    shared = Rows(ROWS.index, 3, all_reduce)
    assert shared.sum(VALUES).tolist() == [19, 106, 106, 19]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kind_of_number_is_kept(dtype):
    assert ROWS.sum(VALUES.to(dtype)).dtype == dtype
