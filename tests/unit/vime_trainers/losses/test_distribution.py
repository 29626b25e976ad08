import math

import pytest
import torch

from vime_trainers.losses.distribution import log_probs_and_entropy

LOGITS = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)


def test_the_temperature_divides_logits_and_not_log_probs():
    """Plan 30."""
    found, _ = log_probs_and_entropy(LOGITS, torch.tensor([0]), temperature=0.5)
    assert found.item() == pytest.approx(4 - math.log(math.exp(4) + math.exp(2) + 1))
    assert found.item() != pytest.approx((2 - math.log(math.e**2 + math.e + 1)) / 0.5)


def test_padding_of_the_vocabulary_takes_no_part():
    """Plan 32: Two padded zeros would make -1.573172 of -1.407606, and 1.238317 of the entropy."""
    padded = torch.cat([LOGITS, torch.zeros(1, 2, dtype=torch.float64)], 1)
    log_prob, entropy = log_probs_and_entropy(padded, torch.tensor([1]))
    assert (log_prob.item(), entropy.item()) == pytest.approx((-1.573172, 1.238317), abs=1e-6)
    log_prob, entropy = log_probs_and_entropy(padded, torch.tensor([1]), vocab_size=3)
    assert (log_prob.item(), entropy.item()) == pytest.approx((-1.407606, 0.832396), abs=1e-6)


def test_a_token_that_cannot_be_sampled_leaves_the_entropy_finite():
    """Plan 31: Kept set {0, 1}: log-probs -0.313262 and -1.313262."""
    logits = LOGITS.clone()
    logits[0, 2] = -math.inf
    logits.requires_grad_()
    log_prob, entropy = log_probs_and_entropy(logits, torch.tensor([0]))
    p = math.exp(-0.313262)
    assert log_prob.item() == pytest.approx(-0.313262, abs=1e-6)
    assert entropy.item() == pytest.approx(-(p * math.log(p) + (1 - p) * math.log(1 - p)), abs=1e-6)
    gradient = torch.autograd.grad(entropy.sum() + log_prob.sum(), logits)[0]
    assert torch.isfinite(gradient).all()
    assert gradient[0, 2] == 0


def test_one_tokens_surprise_times_its_probability_is_no_entropy():
    """Plan 29: Its mean over samples is 0.361061, the entropy 1.078501."""
    theta = torch.tensor([[0.2, -0.1, 0.4]], dtype=torch.float64)
    log_probs, entropy = log_probs_and_entropy(theta.expand(3, 3), torch.arange(3))
    p = log_probs.exp()
    assert (p * -(p * log_probs)).sum().item() == pytest.approx(0.361061451, abs=1e-9)
    assert entropy[0].item() == pytest.approx(1.078500614, abs=1e-9)


def test_half_precision_logits_are_computed_in_single():
    log_prob, entropy = log_probs_and_entropy(LOGITS.bfloat16(), torch.tensor([1]))
    assert log_prob.dtype == entropy.dtype == torch.float32
