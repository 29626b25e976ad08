"""Plan 43: what Megatron's schedule makes of a loss, for 2 data-parallel x 2 context-parallel ranks.

Each rank has two micro-batches. Sums of losses and numbers of trainable tokens of each rank's own shard:
    data-parallel 0: [[1, 2], [3, 4]], [[2, 1], [1, 1]];   data-parallel 1: [[5, 0], [7, 8]], [[3, 0], [1, 2]]
The loss of the batch is 30 / 11.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss

SUMS = {(0, 0): [1.0, 2.0], (0, 1): [3.0, 4.0], (1, 0): [5.0, 0.0], (1, 1): [7.0, 8.0]}
COUNTS = {(0, 0): [2, 1], (0, 1): [1, 1], (1, 0): [3, 0], (1, 1): [1, 2]}
TOTAL, DP, CP, NUM_MICRO = 11, 2, 2, 2


def gradients_add_up_to(outputs: Callable[[int, int, int], tuple[Any, ...]], *, per_token: bool) -> float:
    """Over all ranks and micro-batches, after the buffers' own scaling; before any by the token count."""
    config = SimpleNamespace(calculate_per_token_loss=per_token, timers=None)
    total = 0.0
    for (dp, cp), sums in SUMS.items():
        for micro in range(NUM_MICRO):
            loss, _ = forward_step_calc_loss(
                None,
                torch.tensor(sums[micro], dtype=torch.float64),
                lambda _, place=(dp, cp, micro): outputs(*place),
                config,
                None,
                False,
                NUM_MICRO,
                [],
                cp_group_size=CP,
                is_last_stage=True,
            )
            total += loss.item()
    return total if per_token else total / (DP * CP)


def own(dp: int, cp: int, micro: int) -> torch.Tensor:
    return torch.tensor(SUMS[dp, cp][micro], dtype=torch.float64)


def test_weights_that_hold_the_denominator_need_no_scaling_at_all() -> None:
    """Plan 43: As the trainer does it: per-token loss, and gradients finalised without a token count."""
    found = gradients_add_up_to(lambda *p: (own(*p) / TOTAL, torch.tensor(5), {}), per_token=True)
    assert found == pytest.approx(30 / 11)


def test_without_per_token_loss_every_factor_would_have_to_be_taken_out_again() -> None:
    found = gradients_add_up_to(lambda *p: (own(*p) / TOTAL * NUM_MICRO * DP, {}), per_token=False)
    assert found == pytest.approx(30 / 11)
    scale = NUM_MICRO * DP * CP
    found = gradients_add_up_to(lambda *p: (own(*p) / TOTAL * scale, torch.tensor(1), {}), per_token=False)
    assert found == pytest.approx(30 / 11)


def test_counts_of_whole_rows_on_each_context_parallel_rank_would_halve_it() -> None:
    """Plan 43: Guards: 1.363636, and 2.770833 with a mean over each shard's own tokens."""
    raw = gradients_add_up_to(lambda *p: (own(*p), torch.tensor(1), {}), per_token=True)
    assert raw == pytest.approx(30)
    assert raw / sum(map(sum, COUNTS.values())) == pytest.approx(30 / 11)
    assert raw / (CP * TOTAL) == pytest.approx(1.363636, abs=1e-6)
    local = gradients_add_up_to(
        lambda dp, cp, m: (own(dp, cp, m), torch.tensor(COUNTS[dp, cp][m]), {}), per_token=False
    )
    assert local == pytest.approx(2.770833, abs=1e-6)
