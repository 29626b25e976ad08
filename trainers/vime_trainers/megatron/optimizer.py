"""One model's gradient buffers, optimizer and learning-rate schedule, as Megatron-LM sets them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from vime_agents.errors import CheckpointError
from vime_trainers.megatron.config import MegatronConfig


def wrap(config: MegatronConfig, parts: Sequence[Any]) -> list[Any]:
    """The parts of the model with gradient buffers, summed over data- and context-parallel ranks."""
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=config.use_distributed_optimizer
    )
    parts[0].config.finalize_model_grads_func = _finalize_grads
    return [DistributedDataParallel(part.config, settings, part) for part in parts]


def make_optimizer(config: MegatronConfig, ddp: list[Any]) -> Any:
    """Adam over what can be trained of a wrapped model's parts."""
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        min_lr=config.min_lr,
        weight_decay=config.weight_decay,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        adam_eps=config.adam_eps,
        clip_grad=config.clip_grad,
        bf16=config.bf16,
        params_dtype=torch.bfloat16 if config.bf16 else torch.float32,
        use_distributed_optimizer=config.use_distributed_optimizer,
    )
    overrides = get_standard_config_overrides(settings)  # wd_mult = 0 on norms and biases
    return get_megatron_optimizer(settings, ddp, overrides)


class Schedule:
    """Megatron's learning-rate schedule, counted in optimizer steps.

    The n-th step, from 1, has the rate that Megatron's scheduler gives at n, so that the first step of a
    warm-up is none of rate 0.
    """

    def __init__(self, config: MegatronConfig, optimizer: Any) -> None:
        # A constant rate has no end; Megatron wants one behind the warm-up.
        decay = config.lr_warmup_iters + 1 if config.lr_decay_iters is None else config.lr_decay_iters
        self._scheduler = OptimizerParamScheduler(
            optimizer,
            init_lr=0.0,
            max_lr=config.lr,
            min_lr=config.min_lr,
            lr_warmup_steps=config.lr_warmup_iters,
            lr_decay_steps=decay,
            lr_decay_style=config.lr_decay_style,
            start_wd=config.weight_decay,
            end_wd=config.weight_decay,
            wd_incr_steps=0,
            wd_incr_style="constant",
            use_checkpoint_opt_param_scheduler=False,
        )

    def advance(self) -> None:
        """Set the rate of the next optimizer step."""
        self._scheduler.step(1)

    @property
    def rate(self) -> float:
        """Of the last optimizer step."""
        return self._scheduler.get_lr({})

    def state_dict(self) -> dict[str, Any]:
        """Its settings and how far it is."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` said.

        Raises:
            CheckpointError: it was another schedule.
        """
        mine = self._scheduler.state_dict()
        changed = [
            f"{k} {state.get(k)} -> {mine[k]}" for k in mine if k != "num_steps" and state.get(k) != mine[k]
        ]
        if changed:
            raise CheckpointError(
                f"the checkpoint's learning-rate schedule is another one ({', '.join(changed)}): give the "
                "same --lr-decay-style, --lr-decay-iters, --lr-warmup-iters and --min-lr"
            )
        self._scheduler.num_steps = state["num_steps"]
        self._scheduler.step(0)


def _finalize_grads(model: list[Any], num_tokens: Tensor | None = None, **kwargs: Any) -> None:
    """Reduce gradients over ranks, and divide by nothing: token weights contain the denominator."""
    finalize_model_grads(model, None, **kwargs)
