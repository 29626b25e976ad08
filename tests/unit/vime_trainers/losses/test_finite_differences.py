"""Gradients of every loss against central differences of its formula in numpy, float64, ragged masked rows.

What a loss detaches is held fixed in the formula: CISPO's weight, an importance weight, k3+'s value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vime_trainers.losses import corrections, kl
from vime_trainers.losses.distribution import log_probs_and_entropy
from vime_trainers.losses.gspo import gspo_loss
from vime_trainers.losses.policy_gradient import cispo_loss, ppo_clip_loss, reinforce_loss
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.supervised import sft_loss, value_loss

BOUNDS = {"eps_clip": 0.2, "eps_clip_high": 0.28}
EDGES = np.log([0.8, 1.28, 3.0, 2.0, 0.5])
"""Log-ratios at which some loss has a kink: no derivative there."""
STEP, KINK = 1e-6, 1e-4

Formula = Callable[["Data", np.ndarray], np.ndarray]


class Data:
    """Rows of different lengths with junk where masked."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.index = np.repeat(np.arange(3), rng.integers(1, 5, 3))
        count = self.index.size
        self.mask = rng.random(count) < 0.7
        self.mask[0] = True
        self.x = rng.uniform(-2.5, -0.2, count)
        self.old = self.x - _away_from_kinks(rng.uniform(-1.5, 1.5, count))
        self.engine = self.old - _away_from_kinks(rng.uniform(-1.5, 1.5, count))
        self.advantages = rng.choice([-1.5, -0.5, 0.7, 2.0], 3)[self.index]
        self.weights = rng.uniform(0.1, 1, count)
        junk = rng.choice([np.nan, np.inf, -np.inf, 1e30], count)
        for values in (self.old, self.engine, self.advantages):
            values[~self.mask] = junk[~self.mask]

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(getattr(self, name))

    @property
    def rows(self) -> Rows:
        return Rows(torch.from_numpy(self.index), 3)

    def row_means(self, values: np.ndarray) -> np.ndarray:
        """Of the trainable tokens of each token's row."""
        means = np.zeros(3)
        for row in range(3):
            chosen = (self.index == row) & self.mask
            means[row] = values[chosen].mean() if chosen.any() else 0.0
        return means[self.index]


def _away_from_kinks(values: np.ndarray) -> np.ndarray:
    for edge in EDGES:
        values = np.where(np.abs(values - edge) < KINK, edge + 2 * KINK, values)
    return values


def clipped(ratio: Any, a: Any, dual: float = np.inf) -> Any:
    loss = np.maximum(-ratio * a, -np.clip(ratio, 0.8, 1.28) * a)
    return np.where(a < 0, np.minimum(loss, dual * np.abs(a)), loss)


def rho(data: Data) -> Any:
    return np.exp(data.old - data.engine)


def torch_of(data: Data, x: Tensor, name: str) -> Tensor:
    old, engine, advantages, mask = (data.tensor(n) for n in ("old", "engine", "advantages", "mask"))
    if name == "reinforce":
        return reinforce_loss(x, advantages, mask)
    if name == "ppo":
        return ppo_clip_loss(x, old, advantages, mask, **BOUNDS)[0]
    if name == "ppo, dual clip":
        return ppo_clip_loss(x, old, advantages, mask, dual_clip=3.0, **BOUNDS)[0]
    if name == "cispo":
        return cispo_loss(x, old, advantages, mask, **BOUNDS)[0]
    if name == "ppo, token TIS":
        return (
            ppo_clip_loss(x, old, advantages, mask, **BOUNDS)[0]
            * corrections.token_tis(old, engine, mask, clip=2.0)[0]
        )
    if name == "ppo, IcePop":
        return (
            ppo_clip_loss(x, old, advantages, mask, **BOUNDS)[0]
            * corrections.icepop(old, engine, mask, low=0.5, high=2.0)[0]
        )
    if name == "sft":
        return sft_loss(x, mask)
    if name.startswith("r "):
        return kl.ratio_weighted(kl.ESTIMATORS[name[2:]], x, old, engine, mask)
    return kl.ESTIMATORS[name](x, engine, mask)


def k3(x: Any, reference: Any) -> Any:
    return np.exp(reference - x) - 1 + x - reference


FORMULAS: dict[str, Formula] = {
    "reinforce": lambda data, x: -data.advantages * x,
    "ppo": lambda data, x: clipped(np.exp(x - data.old), data.advantages),
    "ppo, dual clip": lambda data, x: clipped(np.exp(x - data.old), data.advantages, 3.0),
    "cispo": lambda data, x: -np.clip(np.exp(data.x - data.old), 0.8, 1.28) * data.advantages * x,
    "ppo, token TIS": lambda data, x: (
        np.minimum(rho(data), 2) * clipped(np.exp(x - data.old), data.advantages)
    ),
    "ppo, IcePop": lambda data, x: (
        np.where((rho(data) < 0.5) | (rho(data) > 2), 0, rho(data))
        * clipped(np.exp(x - data.old), data.advantages)
    ),
    "sft": lambda data, x: -x,
    "k1": lambda data, x: x - data.engine,
    "k2": lambda data, x: (x - data.engine) ** 2 / 2,
    "k3": lambda data, x: k3(x, data.engine),
    "r k1": lambda data, x: np.exp(x - data.old) * (x - data.engine),
    "r k3": lambda data, x: np.exp(x - data.old) * k3(x, data.engine),
}


def slopes(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    found = np.zeros(at.size)
    for i in range(at.size):
        step = np.zeros(at.size)
        step[i] = STEP
        found[i] = (function(at + step) - function(at - step)) / (2 * STEP)
    return found


@pytest.mark.parametrize("name", sorted(FORMULAS))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_values_and_gradients_are_those_of_the_formula_whatever_the_masked_entries_hold(
    name: str, seed: int
) -> None:
    """Plan 38."""
    data = Data(seed)

    def total(x: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            return float((data.weights * FORMULAS[name](data, x))[data.mask].sum())

    x = data.tensor("x").clone().requires_grad_()
    loss = torch_of(data, x, name)
    assert not loss[~data.tensor("mask")].any()
    value = (data.tensor("weights") * loss).sum()
    (gradient,) = torch.autograd.grad(value, x)
    assert value.item() == pytest.approx(total(data.x), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(gradient.numpy(), slopes(total, data.x), rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_gspo_has_the_gradient_of_its_sequence_form(seed: int) -> None:
    data = Data(seed)
    counts = np.array([((data.index == i) & data.mask).sum() for i in range(3)])[data.index]
    with np.errstate(all="ignore"):
        mean = np.exp(data.row_means(data.x - data.old))
    if min(abs(np.log(mean) - e).min() for e in EDGES) < KINK:
        return

    def total(x: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            ratio = np.exp(data.row_means(x - data.old))
            return float((clipped(ratio, data.advantages) / counts)[data.mask].sum())

    x = data.tensor("x").clone().requires_grad_()
    old, advantages, mask = (data.tensor(n) for n in ("old", "advantages", "mask"))
    loss, _, _ = gspo_loss(x, old, advantages, mask, data.rows, **BOUNDS)
    value = (loss / torch.from_numpy(counts).clamp(min=1)).sum()
    (gradient,) = torch.autograd.grad(value, x)
    assert value.item() == pytest.approx(total(data.x), rel=1e-9)
    np.testing.assert_allclose(gradient.numpy(), slopes(total, data.x), rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2(seed: int) -> None:
    data = Data(seed)
    mask, engine = data.tensor("mask"), data.tensor("engine")
    x = data.tensor("x").clone().requires_grad_()
    found = kl.k3_plus(x, engine, mask)
    with np.errstate(all="ignore"):
        value = np.where(data.mask, k3(data.x, data.engine), 0)
        slope = np.where(data.mask, data.x - data.engine, 0)
    np.testing.assert_allclose(found.detach().numpy(), value, atol=1e-9)
    np.testing.assert_allclose(torch.autograd.grad(found.sum(), x)[0].numpy(), slope, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_value_loss(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, old, target = rng.normal(size=(3, 6))
    error = (old + np.clip(value - old, -0.2, 0.2) - target) ** 2 - (value - target) ** 2
    if min(np.abs(error).min(), np.abs(np.abs(value - old) - 0.2).min()) < KINK:
        return

    def total(v: np.ndarray) -> float:
        bounded = old + np.clip(v - old, -0.2, 0.2)
        return float(np.maximum((v - target) ** 2, (bounded - target) ** 2).sum() / 2)

    v = torch.from_numpy(value).requires_grad_()
    loss, _ = value_loss(
        v, torch.from_numpy(old), torch.from_numpy(target), torch.ones(6, dtype=torch.bool), value_clip=0.2
    )
    assert loss.sum().item() == pytest.approx(total(value))
    np.testing.assert_allclose(torch.autograd.grad(loss.sum(), v)[0].numpy(), slopes(total, value), atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_log_probs_and_entropy_from_logits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, target = rng.normal(size=4), int(rng.integers(4))

    def both(z: np.ndarray) -> float:
        p = np.exp(z / 0.7) / np.exp(z / 0.7).sum()
        return float(np.log(p[target]) - 2 * (p * np.log(p)).sum())

    z = torch.from_numpy(logits).requires_grad_()
    log_prob, entropy = log_probs_and_entropy(z[None], torch.tensor([target]), temperature=0.7)
    value = (log_prob + 2 * entropy).sum()
    assert value.item() == pytest.approx(both(logits))
    np.testing.assert_allclose(torch.autograd.grad(value, z)[0].numpy(), slopes(both, logits), atol=1e-6)
