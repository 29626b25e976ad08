from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vime_trainers.losses.distillation import top_k_reverse_kl
from vime_trainers.losses.distribution import top_log_probs

STUDENT, TEACHER = [0.5, 0.3, 0.2], [0.7, 0.2, 0.1]


def divergence(student: list[float], teacher: list[float]) -> float:
    """Of one token whose probabilities are given, the last ones those of the rest."""
    rows = (torch.tensor([values], dtype=torch.float64).log() for values in (student, teacher))
    return top_k_reverse_kl(*rows, torch.tensor([True])).item()


def of_logits(student: torch.Tensor, teacher: np.ndarray, k: int) -> torch.Tensor:
    """[num_tokens] with the teacher's k likeliest."""
    known = torch.from_numpy(teacher)
    ids = known.topk(k).indices
    mask = torch.ones(len(student), dtype=torch.bool)
    return top_k_reverse_kl(top_log_probs(student, ids), top_log_probs(known, ids), mask)


def by_numpy(student: np.ndarray, teacher: np.ndarray, k: int) -> float:
    """The sum over tokens, from probabilities."""
    total = 0.0
    for z, y in zip(student, teacher, strict=True):
        p, q = np.exp(z) / np.exp(z).sum(), np.exp(y) / np.exp(y).sum()
        top, others = np.argsort(-q)[:k], np.argsort(-q)[k:]
        total += sum(p[j] * math.log(p[j] / q[j]) for j in top)
        if len(others):
            total += p[others].sum() * math.log(p[others].sum() / q[others].sum())
    return total


def test_one_token_and_the_rest_by_hand():
    """0.5 ln(5/7) + 0.5 ln(5/3) = -0.168236 + 0.255413; the whole: -0.168236 + 0.121640 + 0.138629."""
    assert divergence([0.5, 0.5], [0.7, 0.3]) == pytest.approx(0.087177, abs=1e-6)
    assert divergence([*STUDENT, 0.0], [*TEACHER, 0.0]) == pytest.approx(0.092033, abs=1e-6)


def test_mass_outside_the_top_is_seen_and_moving_there_does_not_pay():
    """The sum over the top alone would be -0.48 here, and fall without end."""
    assert divergence([0.01, 0.99], [0.9, 0.1]) == pytest.approx(
        0.01 * math.log(0.01 / 0.9) + 0.99 * math.log(9.9)
    )
    assert divergence([0.01, 0.99], [0.9, 0.1]) > divergence([0.5, 0.5], [0.9, 0.1]) > 0


@given(seed=st.integers(0, 2**32 - 1))
def test_with_the_whole_vocabulary_it_is_the_whole_divergence_and_less_with_fewer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(size=(2, 3, 6)) * 2
    p, q = (torch.log_softmax(torch.from_numpy(x), -1) for x in (student, teacher))
    whole = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    found = [of_logits(torch.from_numpy(student), teacher, k) for k in range(1, 7)]
    torch.testing.assert_close(found[-1], whole)
    for less, more in zip([torch.zeros(3), *found], found, strict=False):
        assert (less <= more + 1e-12).all()


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 5))
def test_value_and_gradient_are_those_of_the_formula(seed: int, k: int) -> None:
    """Plan 35: a teacher's whole distribution."""
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(size=(2, 2, 5))
    logits = torch.from_numpy(student).requires_grad_()
    value = of_logits(logits, teacher, k).sum()
    assert value.item() == pytest.approx(by_numpy(student, teacher, k))
    slopes = np.zeros_like(student)
    for place in np.ndindex(student.shape):
        step = np.zeros_like(student)
        step[place] = 1e-6
        slopes[place] = (by_numpy(student + step, teacher, k) - by_numpy(student - step, teacher, k)) / 2e-6
    np.testing.assert_allclose(torch.autograd.grad(value, logits)[0].numpy(), slopes, atol=1e-7)


def test_masked_entries_reach_neither_value_nor_gradient():
    rows = [[math.log(0.5), math.log(0.5)], [math.nan, math.inf], [-math.inf, math.nan]]
    current = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[math.log(0.7), math.log(0.3)], [math.nan] * 2, [math.inf] * 2]).double()
    found = top_k_reverse_kl(current, teacher, torch.tensor([True, False, False]))
    assert found.tolist() == [pytest.approx(0.087177, abs=1e-6), 0, 0]
    gradient = torch.autograd.grad(found.sum(), current)[0]
    assert gradient[1:].tolist() == [[0, 0], [0, 0]]
    assert torch.isfinite(gradient).all()


def test_a_student_that_is_sure_of_one_token_gives_no_nan():
    """The others have no mass left in float32: 0 log 0 is 0."""
    logits = torch.tensor([[0.0, -300.0, -300.0]], requires_grad=True)
    value = of_logits(logits, np.log(np.float32([TEACHER])), 1).sum()
    assert value.item() == pytest.approx(-math.log(0.7), rel=1e-6)
    assert torch.isfinite(torch.autograd.grad(value, logits)[0]).all()
