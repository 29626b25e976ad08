import math

import pytest
import torch

from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.token_loss import SUMS, token_loss

LOG_PROBS = [-0.9, -0.5, -1.6]
ROLLOUT = [-1.2, -1.5, -1.5]
ADVANTAGES = [1.0, -2.0, 0.5]
WEIGHTS = [0.5, 0.25, 0.25]
ENTROPY = [1.0, 2.0, 3.0]


def run(config: LossConfig):
    as_tensor = lambda values: torch.tensor(values, dtype=torch.float64)  # noqa: E731
    log_probs = as_tensor(LOG_PROBS).requires_grad_()
    result = token_loss(
        config,
        log_probs=log_probs,
        entropy=as_tensor(ENTROPY),
        rollout_log_probs=as_tensor(ROLLOUT),
        advantages=as_tensor(ADVANTAGES),
        weights=as_tensor(WEIGHTS),
    )
    (gradient,) = torch.autograd.grad(result.loss, log_probs)
    return result, gradient.tolist(), dict(zip(SUMS, result.sums.tolist(), strict=True))


@pytest.mark.parametrize("policy_loss", ["ppo", "reinforce"])
def test_on_policy_gradient_is_minus_weight_times_advantage(policy_loss):
    _, gradient, _ = run(LossConfig(policy_loss=policy_loss))
    assert gradient == pytest.approx([-0.5, 0.5, -0.125])


def test_tis_multiplies_each_token_by_its_truncated_ratio():
    _, gradient, sums = run(LossConfig(tis_clip=2.0))
    ratios = [math.exp(0.3), 2.0, math.exp(-0.1)]
    expected = [-w * a * r for w, a, r in zip(WEIGHTS, ADVANTAGES, ratios, strict=True)]
    assert gradient == pytest.approx(expected)
    assert sums["tis_clipped"] == 1
    assert sums["is_weight"] == pytest.approx(sum(ratios))
    assert sums["is_weight_squared"] == pytest.approx(sum(r * r for r in ratios))


def test_bypass_takes_the_ratio_against_the_rollout():
    _, gradient, sums = run(LossConfig(old_logprobs="rollout", eps_clip=0.2, eps_clip_high=0.28))
    # Token 0: exp(0.3) = 1.35 > 1.28 at A > 0 is clipped; token 1: A < 0, not clipped; token 2: inside.
    expected = [0.0, 0.25 * 2 * math.exp(1.0), -0.25 * 0.5 * math.exp(-0.1)]
    assert gradient == pytest.approx(expected)
    assert sums["clipped"] == 1
    assert sums["ratio"] == pytest.approx(math.exp(0.3) + math.exp(1.0) + math.exp(-0.1))


def test_entropy_and_kl_terms_use_the_same_weights():
    plain, _, _ = run(LossConfig())
    full, gradient, _ = run(LossConfig(entropy_coef=0.1, kl_coef=0.2, kl_estimator="k2"))
    d = [a - b for a, b in zip(LOG_PROBS, ROLLOUT, strict=True)]
    extra = sum(w * (0.2 * x * x / 2 - 0.1 * h) for w, x, h in zip(WEIGHTS, d, ENTROPY, strict=True))
    assert (full.loss - plain.loss).item() == pytest.approx(extra)
    expected = [w * (0.2 * x - a) for w, x, a in zip(WEIGHTS, d, ADVANTAGES, strict=True)]
    assert gradient == pytest.approx(expected)


def test_reported_sums():
    result, _, sums = run(LossConfig())
    d = [0.3, 1.0, -0.1]
    assert sums["count"] == 3
    assert sums["entropy"] == pytest.approx(6.0)
    assert sums["abs_diff"] == pytest.approx(1.4)
    assert result.max_abs_diff.item() == pytest.approx(1.0)
    assert sums["kl_k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in d))
    assert sums["loss"] == sums["pg_loss"] == pytest.approx(result.loss.item())
