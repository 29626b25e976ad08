"""Golden values from the closed forms; the exact expectations are sums over a vocabulary of three."""

import pytest
import torch

from vime_trainers.losses.kl import k1, k2, k3

LOG_PROBS = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
REFERENCE = torch.tensor([-1.2, -1.5, -0.5], dtype=torch.float64)
MASK = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("estimator", "values", "gradients"),
    [
        (k1, [0.2, -0.5, 0.0], [1.0, 1.0, 1.0]),
        (k2, [0.02, 0.125, 0.0], [0.2, -0.5, 0.0]),
        (k3, [0.018730753, 0.148721271, 0.0], [0.181269247, -0.648721271, 0.0]),
    ],
)
def test_values_and_gradients(estimator, values, gradients):
    """Plan 27."""
    log_probs = LOG_PROBS.clone().requires_grad_()
    result = estimator(log_probs, REFERENCE, MASK)
    assert result.tolist() == pytest.approx(values, abs=1e-9)
    assert torch.autograd.grad(result.sum(), log_probs)[0].tolist() == pytest.approx(gradients, abs=1e-9)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        (k1, 0.082224646, [0.0, 0.0, 0.0]),
        (k2, 0.081271892, [-0.005022383, -0.153773939, 0.158796322]),
        (k3, 0.082224646, [0.021986704, -0.175923738, 0.153937034]),
    ],
)
def test_exact_expectations_over_the_policy(estimator, value, gradient):
    """Plan 28: KL(policy || ref) = 0.082224646; its gradient is k2's, that of KL(ref || policy) k3's."""
    theta = torch.tensor([0.2, -0.1, 0.4], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.3, -0.2], dtype=torch.float64), 0)
    log_probs = torch.log_softmax(theta, 0)
    probs = log_probs.detach().exp()
    expectation = (probs * estimator(log_probs, reference, MASK)).sum()
    assert expectation.item() == pytest.approx(value, abs=1e-9)
    assert torch.autograd.grad(expectation, theta)[0].tolist() == pytest.approx(gradient, abs=1e-9)
