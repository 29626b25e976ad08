import math

import pytest
import torch

from vime_trainers.losses.gspo import gspo_loss
from vime_trainers.losses.rows import Rows

BOUNDS = {"eps_clip": 0.2, "eps_clip_high": 0.3}


def run(gaps, advantages, mask, index, num_rows):
    log_probs = torch.tensor(gaps, dtype=torch.float64, requires_grad=True)
    old = torch.zeros(len(gaps), dtype=torch.float64)
    loss, ratio, clipped = gspo_loss(
        log_probs,
        old,
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(mask),
        Rows(torch.tensor(index), num_rows),
        **BOUNDS,
    )
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    return loss, ratio, clipped, gradient


def test_the_ratio_is_the_rows_and_masked_tokens_have_no_part_in_it():
    """Plan 20: A token with a ratio of 9 that a tool wrote changes nothing."""
    loss, ratio, _, gradient = run(
        [0.1, -0.3, 0.5, math.log(9)], [1.0] * 4, [True, True, True, False], [0] * 4, 1
    )
    assert ratio[:3].tolist() == pytest.approx([math.exp(0.1)] * 3)
    assert loss.tolist() == pytest.approx([-math.exp(0.1)] * 3 + [0.0])
    assert gradient.tolist() == pytest.approx([-math.exp(0.1)] * 3 + [0.0])


def test_rows_are_clipped_each_as_a_whole():
    """Means 0.4 (above 1.3 at A > 0: clipped) and -0.1 (inside), though single tokens are far outside."""
    loss, _, clipped, gradient = run(
        [1.0, -0.2, 0.9, -1.1], [1.0, 1.0, -1.0, -1.0], [True] * 4, [0, 0, 1, 1], 2
    )
    assert clipped.tolist() == [True, True, False, False]
    assert loss.tolist() == pytest.approx([-1.3, -1.3, math.exp(-0.1), math.exp(-0.1)])
    assert gradient.tolist() == pytest.approx([0, 0, math.exp(-0.1), math.exp(-0.1)])


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_entries_may_hold_anything(junk):
    """Plan 38."""
    loss, _, clipped, gradient = run([0.1, junk], [1.0, junk], [True, False], [0, 0], 1)
    assert loss.tolist() == pytest.approx([-math.exp(0.1), 0.0])
    assert gradient.tolist() == pytest.approx([-math.exp(0.1), 0.0])
    assert clipped.tolist() == [False, False]


def test_extreme_rows_stay_finite():
    loss, ratio, _, gradient = run([500.0, -500.0], [-1.0, -1.0], [True, True], [0, 1], 2)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)])
