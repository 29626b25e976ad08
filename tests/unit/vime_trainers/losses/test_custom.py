"""A loss of the user's own sees each row's trainable tokens, and cannot return what is no loss."""

import pytest
import torch

from vime_agents.errors import ConfigError, ContractError
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.custom import custom_loss, load_custom_loss
from vime_trainers.losses.distribution import log_probs_and_entropy
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.token_loss import SUMS, TokenInputs

CONFIG = LossConfig(
    loss_type="custom_loss", custom_loss_function_path=f"{__name__}:squared", old_logprobs="rollout"
)
TARGETS = torch.tensor([1, 0, 2])
WEIGHTS = [0.5, 0.25, 0.25]


def run(function):
    logits = torch.arange(9.0).reshape(3, 3).sin().requires_grad_()
    log_probs, entropy = log_probs_and_entropy(logits, TARGETS)
    tokens = TokenInputs(
        log_probs=log_probs,
        entropy=entropy,
        rollout_log_probs=torch.tensor([-1.0, -1.5, -0.5]),
        advantages=torch.tensor([1.0, -1.0, 2.0]),
        weights=torch.tensor(WEIGHTS),
        rows=Rows(torch.tensor([0, 0, 2]), 4),
    )
    return custom_loss(function, CONFIG, tokens, TARGETS, logits), logits


def squared(args, batch, logits, sum_of_sample_mean):
    old, current = torch.cat(batch["log_probs"]), torch.cat(batch["current_log_probs"])
    return sum_of_sample_mean((current - old) ** 2), {"gap": sum_of_sample_mean((current - old).abs())}


def test_loss_metrics_and_gradient_are_the_functions():
    result, logits = run(squared)
    log_probs = torch.log_softmax(logits.detach(), -1).gather(-1, TARGETS[:, None])[:, 0]
    gaps = log_probs - torch.tensor([-1.0, -1.5, -0.5])
    assert result.loss.item() == pytest.approx((torch.tensor(WEIGHTS) * gaps**2).sum().item())
    assert result.custom["gap"].item() == pytest.approx((torch.tensor(WEIGHTS) * gaps.abs()).sum().item())
    assert dict(zip(SUMS, result.sums.tolist(), strict=True))["count"] == 3
    (gradient,) = torch.autograd.grad(result.loss, logits)
    probs = torch.softmax(logits.detach(), -1)
    unit = torch.nn.functional.one_hot(TARGETS, 3) - probs
    torch.testing.assert_close(gradient, (2 * torch.tensor(WEIGHTS) * gaps)[:, None] * unit)


def test_the_batch_has_a_tensor_for_each_row_even_for_one_without_tokens():
    seen = {}

    def look(args, batch, logits, sum_of_sample_mean):
        seen.update(batch)
        assert args is CONFIG
        assert logits.shape == (3, 3)
        return logits.sum() * 0, {}

    run(look)
    assert seen["response_lengths"] == [2, 0, 1, 0]
    assert [t.tolist() for t in seen["tokens"]] == [[1, 0], [], [2], []]
    assert [t.tolist() for t in seen["advantages"]] == [[1.0, -1.0], [], [2.0], []]
    assert [t.tolist() for t in seen["loss_masks"]] == [[1.0, 1.0], [], [1.0], []]
    assert [t.tolist() for t in seen["log_probs"]] == [[-1.0, -1.5], [], [-0.5], []]
    assert "teacher_log_probs" not in seen


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (torch.zeros(()), r"must return \(loss, metrics\)"),
        ((torch.zeros(3), {}), "scalar tensor"),
        ((0.5, {}), "scalar tensor"),
        ((torch.zeros(()), {"gap": torch.zeros(3)}), r"metric 'gap' has shape \(3,\)"),
    ],
)
def test_what_is_no_loss_is_refused_with_the_function_named(returned, told):
    with pytest.raises(ContractError, match=told) as caught:
        run(lambda *args: returned)
    assert "squared" in str(caught.value)


def test_the_function_is_found_by_its_path():
    assert load_custom_loss("vime_trainers.losses.custom:custom_loss") is custom_loss
    with pytest.raises(ConfigError, match="--custom-loss-function-path"):
        load_custom_loss("vime_trainers.losses.custom:nothing")
    with pytest.raises(ConfigError, match="not a function"):
        load_custom_loss("vime_trainers.losses.custom:_FLAG")
