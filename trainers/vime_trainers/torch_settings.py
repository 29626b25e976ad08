"""What the torch trainer acts on of a trainer's settings. No torch: a run is refused before it starts."""

from __future__ import annotations

import dataclasses

from vime_agents.errors import ConfigError
from vime_trainers.megatron.config import MegatronConfig

HONOURED = frozenset(
    {
        "hf_checkpoint",
        "ref_load",
        "opd_teacher_load",
        "seed",
        "lr",
        "lr_warmup_iters",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_eps",
        "clip_grad",
        "max_tokens_per_gpu",
        "log_probs_chunk_size",  # all logits of a micro-batch exist: the bound is the tokens'
        "loss",
        "peak_tflops",
    }
)
"""Settings that this trainer acts on; any other must be left as it is."""


def refuse_megatron_settings(config: MegatronConfig) -> None:
    """Raises ConfigError: a setting that this trainer would not act on."""
    for field in dataclasses.fields(config):
        if field.name in HONOURED:
            continue
        value = getattr(config, field.name)
        if value != field.default:
            flag = "--" + field.name.replace("_", "-")
            raise ConfigError(f"{flag} {value}: --trainer torch has no such thing; drop it, or use megatron")
