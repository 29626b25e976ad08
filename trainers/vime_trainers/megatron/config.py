"""The trainer's settings. No torch: the command line builds it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vime_agents.errors import ConfigError
from vime_trainers.losses.config import LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters: `y = W x + (alpha / rank) B A x`, W frozen."""

    rank: int
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ("all-linear",)
    """Hugging Face names of linear layers (q_proj, ...); `all-linear`: all that a layer has."""

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0 or not self.target_modules:
            raise ConfigError(
                f"--lora-rank {self.rank}, --lora-alpha {self.alpha}, --lora-target-modules "
                f"{self.target_modules}: must be at least 1, above 0, and not empty"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """A critic beside the policy, in the same ranks and with the policy's settings but these."""

    load: str | None = None
    """Its folder, of another size or family if you like; None: the policy's. A head `score.weight` of one
    label is read from it, as reward models have; without one every state is worth 0 at first."""
    lr: float | None = None
    """None: the policy's."""
    lr_warmup_iters: int = 0
    lr_decay_iters: int | None = None
    """None: the policy's."""
    value_clip: float = 0.2
    """How far a value may move from what it was when the advantages were made; 0: anywhere."""

    def __post_init__(self) -> None:
        for name, value in (("critic-lr", self.lr or 0.0), ("value-clip", self.value_clip)):
            if not value >= 0:
                raise ConfigError(f"--{name} {value}: must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronConfig:
    """One trainer, however many ranks. Names are those of Megatron-LM's flags."""

    hf_checkpoint: str
    """Folder with `config.json` and `*.safetensors`: the model's shape and its first weights."""
    ref_load: str | None = None
    """Folder of the frozen model that `loss.kl_reference = "sample"` refers to; None: the samples say it."""
    opd_teacher_load: str | None = None
    """Folder of the frozen model that `loss.opd_kl_coef` distils; None: the samples say it."""
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    num_layers_per_virtual_pipeline_stage: int | None = None
    """Cut each pipeline stage into parts of so many layers, which take turns: shorter waits. None: one."""
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    """Ranks, out of those of data, context and tensor parallelism, that share the experts of a layer."""
    expert_tensor_parallel_size: int | None = None
    """Ranks that share each expert; None: `tensor_model_parallel_size`."""
    sequence_parallel: bool = False
    """Also split the activations between the tensor-parallel blocks along the sequence."""
    use_distributed_optimizer: bool = False
    """Shard the optimizer's state over the data-parallel ranks."""
    bf16: bool = False
    """Weights and activations in bfloat16, master weights and gradients in float32."""
    seed: int = 0

    lr: float = 1e-6
    min_lr: float = 0.0
    """What the rate decays to."""
    lr_warmup_iters: int = 0
    """Optimizer step n of the first ones, from 1, uses lr * n / lr_warmup_iters."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root"] = "constant"
    """How the rate falls after that."""
    lr_decay_iters: int | None = None
    """Optimizer steps until it is `min_lr`, warm-up included; the styles that decay need it."""
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    clip_grad: float = 1.0
    """Largest global gradient norm; 0 turns clipping off."""

    max_tokens_per_gpu: int = 4096
    """Most tokens of one forward pass on one rank (context-parallel ranks share a row)."""
    log_probs_chunk_size: int = 1024
    """Trainable tokens whose logits exist at the same time."""
    recompute_granularity: Literal["full"] | None = None
    """`full`: keep only each layer's input and compute the layer again in the backward pass."""
    moe_aux_loss_coeff: float = 0.0
    """Weight of the loss that keeps the experts of a layer equally busy, of each row by itself; 0: none."""
    transformer_impl: Literal["auto", "local", "transformer_engine"] = "auto"
    """`local`: layers in plain torch; `transformer_engine`: fused ones; `auto`: fused if they can be."""
    fp8_format: Literal["e4m3", "hybrid"] | None = None
    """Matrix products in 8 bits, by Transformer Engine on accelerators; None: none."""
    peak_tflops: float | None = None
    """What one rank's device can do, 10^12 operations a second, for `mfu`; None: as a table knows it."""
    loss: LossConfig = field(default_factory=LossConfig)
    critic: CriticConfig | None = None
    """None: there is none."""
    lora: LoraConfig | None = None
    """None: the weights themselves are trained."""
    only_train_params_name_list: str | None = None
    """Regular expressions with spaces between: the parameters that are trained. None: all."""
    freeze_params_name_list: str | None = None
    """Likewise, those that are not."""

    def __post_init__(self) -> None:
        at_least_one = (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "num_layers_per_virtual_pipeline_stage",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "max_tokens_per_gpu",
            "log_probs_chunk_size",
        )
        for name in at_least_one:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_flag(name)} {value}: must be at least 1")
        for name in ("lr", "min_lr", "weight_decay", "clip_grad", "lr_warmup_iters", "moe_aux_loss_coeff"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{_flag(name)} {getattr(self, name)}: must not be negative")
        if self.recompute_granularity not in (None, "full"):
            raise ConfigError(f"--recompute-granularity {self.recompute_granularity!r}: 'full' or nothing")
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ConfigError(
                "--sequence-parallel splits over the tensor-parallel ranks: it needs "
                "--tensor-model-parallel-size above 1"
            )
        if self.num_layers_per_virtual_pipeline_stage and self.pipeline_model_parallel_size == 1:
            raise ConfigError(
                "--num-layers-per-virtual-pipeline-stage cuts pipeline stages into parts: it needs "
                "--pipeline-model-parallel-size above 1"
            )
        if (
            self.expert_model_parallel_size == 1
            and self.expert_tensor_size != self.tensor_model_parallel_size
        ):
            # Megatron then adds the gradients of experts up over the copies of the model only.
            raise ConfigError(
                f"--expert-tensor-parallel-size {self.expert_tensor_size}: other than "
                f"--tensor-model-parallel-size {self.tensor_model_parallel_size} it needs "
                "--expert-model-parallel-size above 1"
            )
        if self.fp8_format is not None and (self.transformer_impl == "local" or not self.bf16):
            raise ConfigError(
                f"--fp8-format {self.fp8_format}: needs --bf16 and --transformer-impl transformer_engine"
            )
        self._check_schedule()
        lists = [x for x in (self.only_train_params_name_list, self.freeze_params_name_list) if x is not None]
        if len(lists) + (self.lora is not None) > 1:
            raise ConfigError(
                "--only-train-params-name-list, --freeze-params-name-list and --lora-rank each say what is "
                "trained: give one of them"
            )

    def _check_schedule(self) -> None:
        if self.min_lr > self.lr:
            raise ConfigError(f"--min-lr {self.min_lr}: the rate cannot decay to more than --lr {self.lr}")
        if self.lr_decay_style not in ("constant", "linear", "cosine", "inverse-square-root"):
            raise ConfigError(
                f"--lr-decay-style {self.lr_decay_style!r}: constant, linear, cosine or inverse-square-root"
            )
        if self.lr_decay_style == "constant":
            if self.min_lr or self.lr_decay_iters is not None:
                raise ConfigError(
                    "--min-lr and --lr-decay-iters: a constant rate does not decay; give --lr-decay-style"
                )
        elif self.lr_decay_iters is None or self.lr_decay_iters <= self.lr_warmup_iters:
            raise ConfigError(
                f"--lr-decay-iters {self.lr_decay_iters}: --lr-decay-style {self.lr_decay_style} needs more "
                f"steps than --lr-warmup-iters {self.lr_warmup_iters}"
            )

    @property
    def expert_tensor_size(self) -> int:
        """Ranks that share each expert."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one replica of the model."""
        return (
            self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
