"""Losses of the user's own, by dotted path, with the signature that vime has for them.

    def loss(args, batch, logits, sum_of_sample_mean) -> (loss, {name: tensor})

- `args`: the `LossConfig`.
- `batch`: name -> one tensor [tokens of the row] for each row of the micro-batch, of its trainable tokens
  alone: `tokens` (their ids), `advantages`, `rollout_log_probs`, `log_probs` (what a ratio is taken against,
  see `old_logprobs`), `current_log_probs` and `entropy` (differentiable, of the logits), `loss_masks` (ones),
  `ref_log_probs` and `teacher_log_probs` (NaN where the samples have none); `response_lengths`: how many.
- `logits`: [num_tokens, vocabulary] those which predict the tokens, row after row, already divided by the
  temperature; float32, differentiable.
- `sum_of_sample_mean`: [num_tokens] -> [], the weighted sum. What it makes of per-token values does not
  depend on how the batch was split; what is reduced in any other way does.

The loss is a scalar tensor. The metrics are added up over micro-batches and ranks: reduce them by
`sum_of_sample_mean` too. Context-parallel ranks each see their own part of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from vime_agents.errors import ConfigError, ContractError
from vime_agents.registry import load_object
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.token_loss import TokenInputs, TokenLoss, old_log_probs, report

CustomLoss = Callable[
    [LossConfig, Mapping[str, Any], Tensor, Callable[[Tensor], Tensor]], tuple[Tensor, Mapping[str, Tensor]]
]

_FLAG = "--custom-loss-function-path"


def load_custom_loss(path: str) -> CustomLoss:
    """The function at `module:function`.

    Raises:
        ConfigError: there is none.
    """
    function = load_object(path, _FLAG)
    if not callable(function):
        raise ConfigError(f"{_FLAG} {path!r} is not a function")
    return cast(CustomLoss, function)


def custom_loss(
    function: CustomLoss, config: LossConfig, tokens: TokenInputs, targets: Tensor, logits: Tensor
) -> TokenLoss:
    """What the function makes of some tokens.

    Raises:
        ContractError: it returns anything but a scalar tensor and a mapping of scalars.
    """
    result = function(config, _batch(config, tokens, targets), logits, lambda x: (tokens.weights * x).sum())
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ContractError(f"{_FLAG} {config.custom_loss_function_path!r}: must return (loss, metrics)")
    loss, metrics = result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ContractError(
            f"{_FLAG} {config.custom_loss_function_path!r}: the loss must be a scalar tensor, got {loss!r}: "
            "reduce it by sum_of_sample_mean"
        )
    scalars: dict[str, Tensor] = {}
    for name, value in metrics.items():
        scalars[name] = torch.as_tensor(value).detach().double()
        if scalars[name].numel() != 1:
            raise ContractError(
                f"{_FLAG} {config.custom_loss_function_path!r}: metric {name!r} has shape "
                f"{tuple(scalars[name].shape)}: reduce it by sum_of_sample_mean"
            )
    return report(tokens, loss.reshape(()), custom=scalars)


def _batch(config: LossConfig, tokens: TokenInputs, targets: Tensor) -> dict[str, Any]:
    if tokens.rows is None:
        lengths = [targets.numel()]
    else:
        lengths = torch.bincount(tokens.rows.index, minlength=tokens.rows.num_rows).tolist()
    columns = {
        "tokens": targets,
        "advantages": tokens.advantages,
        "rollout_log_probs": tokens.rollout_log_probs,
        "log_probs": old_log_probs(config, tokens),
        "current_log_probs": tokens.log_probs,
        "entropy": tokens.entropy,
        "loss_masks": torch.ones_like(tokens.advantages),
        "ref_log_probs": tokens.reference_log_probs,
        "teacher_log_probs": tokens.teacher_log_probs,
    }
    return {"response_lengths": lengths} | {
        name: list(values.split(lengths)) for name, values in columns.items() if values is not None
    }
