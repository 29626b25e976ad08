"""Which parameters are trained: all, those whose names match, or adapters beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.families import ModelShape
from vime_trainers.megatron.lora import add_adapters
from vime_trainers.megatron.weights import named_tensors, source_of


def choose_trainable(parts: Sequence[Any], config: MegatronConfig, shape: ModelShape) -> None:
    """Freeze what is not trained, before the model's parts are wrapped; with `lora`, put the adapters in.

    Raises:
        ConfigError: patterns or targets that the model does not have.
    """
    if config.lora is not None:
        add_adapters(parts, config, shape)
    else:
        names = [
            (name, source_of(name, shape).hf_names, tensor)
            for name, tensor in named_tensors(parts, shape)
            if isinstance(tensor, torch.nn.Parameter)
        ]
        only, not_these = config.only_train_params_name_list, config.freeze_params_name_list
        freeze(names, only_train=(only or "").split(), frozen=(not_these or "").split())
    if config.recompute_granularity and parts[0].pre_process:
        # A layer is computed again only where its input has a gradient.
        parts[0].embedding.register_forward_hook(_with_gradient)


def _with_gradient(embedding: Any, inputs: Any, output: Tensor) -> Tensor:
    return output if output.requires_grad or not torch.is_grad_enabled() else output.requires_grad_()


def freeze(
    names: Sequence[tuple[str, tuple[str, ...], Tensor]], *, only_train: Sequence[str], frozen: Sequence[str]
) -> None:
    """Set `requires_grad` of this rank's parameters; a collective of the pipeline stages.

    A pattern is searched for in a parameter's megatron-core name, its layers numbered over the whole model,
    and in its Hugging Face names.

    Args:
        names: (megatron-core name, Hugging Face names, parameter) of each.
        only_train: what is trained; empty: everything.
        frozen: what is not. Give one of the two.

    Raises:
        ConfigError: a pattern that is none, or that no parameter's name has; one that takes a part of a
            parameter; nothing is left to train.
    """
    if only_train and frozen:
        raise ConfigError("--only-train-params-name-list and --freeze-params-name-list: give one of the two")
    if not only_train and not frozen:
        return
    flag = "--only-train-params-name-list" if only_train else "--freeze-params-name-list"
    patterns = [_compiled(flag, text) for text in only_train or frozen]
    used: set[str] = set()
    trained = 0
    for name, hf_names, parameter in names:
        matched = {p.pattern for p in patterns if _matches(flag, p, name, hf_names)}
        used |= matched
        parameter.requires_grad_(bool(matched) == bool(only_train))
        trained += parameter.requires_grad
    group = parallel_state.get_pipeline_model_parallel_group()
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, (used, trained), group=group)
    unused = [p.pattern for p in patterns if not any(p.pattern in stage for stage, _ in found)]
    if unused:
        raise ConfigError(
            f"{flag} {unused[0]!r}: no parameter has it in its name; names are such as {names[0][0]!r} and "
            f"{names[0][1][0]!r}"
        )
    if not any(count for _, count in found):
        raise ConfigError(f"{flag}: leaves nothing to train")


def _compiled(flag: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{flag} {text!r} is not a regular expression: {error}") from error


def _matches(flag: str, pattern: re.Pattern[str], name: str, hf_names: Sequence[str]) -> bool:
    if pattern.search(name):
        return True
    found = [n for n in hf_names if pattern.search(n)]
    if found and len(found) < len(hf_names):
        raise ConfigError(
            f"{flag} {pattern.pattern!r}: takes {', '.join(found)} out of {name}, which is one tensor of "
            f"{', '.join(hf_names)}; they are trained or frozen together"
        )
    return bool(found)
