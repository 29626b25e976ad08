import math

import pytest
import torch

from vime_trainers.losses.corrections import abs_difference, effective_sample_share, token_tis
from vime_trainers.losses.kl import k2, k3

LOG_RHO = torch.tensor([0.1, -0.2, 1.0, -3.0, 0.0], dtype=torch.float64)
ZEROS, ALL = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.bool)


def test_token_tis_truncates_above_only():
    weights, truncated = token_tis(LOG_RHO, ZEROS, ALL, clip=2.0)
    assert weights.tolist() == pytest.approx([1.105171, 0.818731, 2.0, 0.049787, 1.0], abs=1e-6)
    assert truncated.tolist() == [False, False, True, False, False]


def test_token_tis_carries_no_gradient():
    old = LOG_RHO.clone().requires_grad_()
    assert not token_tis(old, ZEROS, ALL, clip=2.0)[0].requires_grad


def test_mismatch_metrics():
    assert k2(LOG_RHO, ZEROS, ALL).mean().item() == pytest.approx(1.005)
    # Samples of the rollout policy: rho - 1 - log rho, with rho = trainer / rollout.
    assert k3(ZEROS, LOG_RHO, ALL).mean().item() == pytest.approx(0.558394, abs=1e-6)
    assert abs_difference(LOG_RHO, ZEROS, ALL).tolist() == pytest.approx([0.1, 0.2, 1.0, 3.0, 0.0])


def test_effective_sample_share():
    # Weights [1, 1, 1, 5], then [3, 3]
    assert effective_sample_share(8.0, 28.0, 4) == pytest.approx(0.571429, abs=1e-6)
    assert effective_sample_share(6.0, 18.0, 2) == pytest.approx(1.0)


def test_masked_positions_do_not_reach_the_difference():
    mask = torch.tensor([True, False])
    found = abs_difference(torch.tensor([-1.0, math.nan]), torch.tensor([-1.5, math.inf]), mask)
    assert found.tolist() == pytest.approx([0.5, 0.0])
