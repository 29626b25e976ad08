import math

import pytest
import torch

from vime_trainers.losses.supervised import sft_loss, value_loss


def test_likelihood_of_what_is_masked_is_not_learned():
    log_probs = torch.tensor([-1.0, math.nan, -2.0], dtype=torch.float64, requires_grad=True)
    loss = sft_loss(log_probs, torch.tensor([True, False, True]))
    assert loss.tolist() == [1.0, 0.0, 2.0]
    assert torch.autograd.grad(loss.sum(), log_probs)[0].tolist() == [-1.0, 0.0, -1.0]


def values_at(values, *, value_clip):
    value = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    old, returns = (
        torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.1, math.nan], [1.0, 0.0, math.inf])
    )
    mask = torch.tensor([True, True, False])
    loss, clipped = value_loss(value, old, returns, mask, value_clip=value_clip)
    (gradient,) = torch.autograd.grad(loss.sum(), value)
    return loss.tolist(), gradient.tolist(), clipped.tolist()


def test_a_critic_moves_no_further_than_the_clip():
    """Plan 34: V = 0.9 went past 0.5 + 0.2 towards 1: the clipped error is larger and has no gradient."""
    loss, gradient, clipped = values_at([0.9, 0.2, math.nan], value_clip=0.2)
    assert loss == pytest.approx([0.045, 0.02, 0.0])
    assert gradient == pytest.approx([0.0, 0.2, 0.0])
    assert clipped == [True, False, False]


def test_a_critic_that_went_the_wrong_way_is_brought_back_from_wherever_it_is():
    """V = 0.2 went down from 0.5, away from 1: the error is its own, not that of the clipped 0.3."""
    loss, gradient, clipped = values_at([0.2, 0.1, 0.0], value_clip=0.2)
    assert loss == pytest.approx([0.32, 0.005, 0.0])
    assert gradient == pytest.approx([-0.8, 0.1, 0.0])
    assert clipped == [False] * 3


def test_rounding_is_no_clipping():
    """In float32, old + (V - old) is not V; inside the bounds nothing is counted as clipped for it."""
    old, value = torch.tensor([-1.1, -1.3, 0.3]), torch.tensor([0.2, 0.1, -0.013])
    returns, mask = torch.tensor([1.0, -2.0, 0.0]), torch.ones(3, dtype=torch.bool)
    assert (old + (value - old) != value).all()
    assert not value_loss(value, old, returns, mask, value_clip=1.5)[1].any()


def test_without_a_clip_it_is_half_the_squared_error():
    loss, gradient, clipped = values_at([0.9, 0.2, 7.0], value_clip=None)
    assert loss == pytest.approx([0.005, 0.02, 0.0])
    assert gradient == pytest.approx([-0.1, 0.2, 0.0])
    assert clipped == [False] * 3
