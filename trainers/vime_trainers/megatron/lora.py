"""Low-rank adapters beside frozen weights: `y = W x + (alpha / rank) B A x`. LoRA, arXiv:2106.09685.

One adapter for each Hugging Face module, also where megatron-core has several in one matrix (q, k and v;
gate and up): an export adds `(alpha / rank) B A` to the weights, or writes A and B as PEFT does. Tensor
parallelism cuts B where it cuts the weight's rows, and A where it cuts its columns; the other one is whole on
every rank.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from safetensors.torch import save_file
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_trainers.megatron.config import LoraConfig, MegatronConfig
from vime_trainers.megatron.device import device, uses_transformer_engine
from vime_trainers.megatron.families import Mapping, ModelShape, mapping_of, merge

SUFFIX = "_lora"
"""An adapter stands beside its linear layer, under that one's name and this."""

_LINEAR = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")


class Adapter(MegatronModule):
    """The adapters of one linear layer: A and B of each of its Hugging Face modules that is a target."""

    def __init__(
        self, linear: Any, line: Mapping, shape: ModelShape, settings: LoraConfig, seed: int
    ) -> None:
        super().__init__(config=linear.config)
        self.line, self.shape = line, shape
        self.hf_modules = [name.removesuffix(".weight") for name in line.hf_names]
        self.scale = settings.alpha / settings.rank
        self.group = parallel_state.get_tensor_model_parallel_group()
        self.sequence_parallel = linear.config.sequence_parallel
        self.sizes = [shape.hf_shapes()[name] for name in line.hf_names]
        for module, (rows, columns) in zip(self.hf_modules, self.sizes, strict=True):
            if short_name(module) in settings.target_modules:
                a, b = _first_values(module, settings.rank, rows, columns, seed)
                self._add(module, "A", a, cut_dim=1 if line.cut == "columns" else None)
                self._add(module, "B", b, cut_dim=0 if line.cut == "rows" else None)

    def _add(self, module: str, side: str, whole: Tensor, *, cut_dim: int | None) -> None:
        part = whole if cut_dim is None else whole.chunk(self.group.size(), cut_dim)[self.group.rank()]
        parameter = torch.nn.Parameter(part.to(device(), self.config.params_dtype).contiguous())
        if cut_dim is None:
            # What is whole sees the rank's share of a sequence only: its gradient is summed over ranks.
            parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        else:
            set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=cut_dim, stride=1)
        self.register_parameter(_key(module, side), parameter)

    def pair(self, module: str) -> tuple[Tensor, Tensor] | None:
        """This rank's A and B of a Hugging Face module, if it is a target."""
        found = [self._parameters.get(_key(module, side)) for side in "AB"]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, batch, in] of this rank -> what is added to the layer's output."""
        if self.line.cut == "columns":
            return self._row_parallel(x)
        return self._column_parallel(x)

    def _column_parallel(self, x: Tensor) -> Tensor:
        pairs = [self.pair(module) for module in self.hf_modules]
        found = [pair for pair in pairs if pair is not None]
        low = F.linear(x, torch.cat([a for a, _ in found]))
        if self.sequence_parallel:
            low = gather_from_sequence_parallel_region(low, group=self.group)
        else:
            low = copy_to_tensor_model_parallel_region(low, group=self.group)
        lows = iter(low.chunk(len(found), -1))
        out = []
        for pair, (rows, _) in zip(pairs, self.sizes, strict=True):
            if pair is None:
                out.append(low.new_zeros(*low.shape[:-1], rows // self.group.size()))
            else:
                out.append(F.linear(next(lows), pair[1]))
        last_first = merge([part.movedim(-1, 0) for part in out], self.line.merge, self.shape)
        return self.scale * last_first.movedim(0, -1)

    def _row_parallel(self, x: Tensor) -> Tensor:
        pair = self.pair(self.hf_modules[0])
        assert pair is not None
        low = F.linear(x, pair[0])
        if self.sequence_parallel:
            low = reduce_scatter_to_sequence_parallel_region(low, group=self.group)
        else:
            low = reduce_from_tensor_model_parallel_region(low, group=self.group)
        return self.scale * F.linear(low, pair[1])

    @torch.no_grad()
    def merged(self, weight: Tensor) -> Tensor:
        """This rank's part of the layer's weight with the adapters added, rounded once."""
        parts = []
        for module, (rows, columns) in zip(self.hf_modules, self.sizes, strict=True):
            pair = self.pair(module)
            if pair is None:
                local = rows // self.group.size() if self.line.cut == "rows" else rows
                parts.append(torch.zeros(local, columns, device=weight.device))
            else:
                parts.append(pair[1].float() @ pair[0].float())
        delta = merge(parts, self.line.merge, self.shape)
        return (weight.float() + self.scale * delta).to(weight.dtype)

    @torch.no_grad()
    def whole(self) -> dict[str, Tensor]:
        """PEFT's names -> A and B, gathered over the tensor-parallel ranks, on the CPU."""
        found = {}
        for module in self.hf_modules:
            for side, cut in (("A", "columns"), ("B", "rows")):
                part = self._parameters.get(_key(module, side))
                if part is None:
                    continue
                if self.line.cut == cut and self.group.size() > 1:
                    shards = [torch.empty_like(part) for _ in range(self.group.size())]
                    dist.all_gather(shards, part.detach(), group=self.group)
                    part = torch.cat(shards, dim=1 if side == "A" else 0)
                name = f"base_model.model.{module}.lora_{side}.weight"
                found[name] = part.detach().cpu().contiguous()
        return found

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """How a distributed checkpoint cuts it."""
        side, axis = ("A", 1) if self.line.cut == "columns" else ("B", 0)
        cut = {_key(module, side): axis for module in self.hf_modules}
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(
            state,
            prefix,
            {name: dim for name, dim in cut.items() if name in state},
            sharded_offsets,
            tp_group=self.group,
            dp_cp_group=(metadata or {}).get("dp_cp_group"),
        )


def add_adapters(parts: Sequence[Any], config: MegatronConfig, shape: ModelShape) -> None:
    """Put the adapters of `config.lora` on this rank's layers, and freeze everything else.

    A begins random, the same whatever the parallel sizes, and B at 0: the model is unchanged at first.

    Raises:
        ConfigError: a target that the model does not have; a model with experts or latent attention; fused
            layers, which hide what A would read.
    """
    settings = config.lora
    assert settings is not None
    if shape.experts is not None or shape.latent is not None:
        raise ConfigError(
            f"--lora-rank: adapters are for dense models with attention of heads, not for "
            f"{shape.model_type}; train its weights"
        )
    if uses_transformer_engine(config.transformer_impl):
        raise ConfigError(
            "--lora-rank: Transformer Engine's layers fuse a projection with the norm before it, and hide "
            "what an adapter reads; give --transformer-impl local"
        )
    known = {
        short_name(name.removesuffix(".weight"))
        for name, size in shape.hf_shapes().items()
        if ".layers." in name and len(size) == 2
    }
    if settings.target_modules == ("all-linear",):
        settings = replace(settings, target_modules=tuple(sorted(known)))
    unknown = sorted(set(settings.target_modules) - known)
    if unknown:
        raise ConfigError(
            f"--lora-target-modules {', '.join(unknown)}: the model's layers have {', '.join(sorted(known))}"
        )
    for part in parts:
        part.requires_grad_(False)
        for layer, place in itertools.product(part.decoder.layers, _LINEAR):
            parent, _, name = place.partition(".")
            linear = getattr(getattr(layer, parent), name)
            line = mapping_of(f"decoder.layers.{layer.layer_number - 1}.{place}.weight", shape)
            targets = {short_name(n.removesuffix(".weight")) for n in line.hf_names}
            if targets & set(settings.target_modules):
                adapter = Adapter(linear, line, shape, settings, config.seed)
                getattr(layer, parent).add_module(name + SUFFIX, adapter)
                linear.register_forward_hook(_adding(adapter))
                linear.weight.merged = adapter.merged


def _adding(adapter: Adapter) -> Any:
    def hook(linear: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        return output[0] + adapter(inputs[0]), output[1]

    return hook


def adapters_of(parts: Sequence[Any]) -> Iterator[Adapter]:
    """This rank's adapters."""
    return (module for part in parts for module in part.modules() if isinstance(module, Adapter))


def save_peft(parts: Sequence[Any], settings: LoraConfig, hf_checkpoint: str, folder: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`, as PEFT does; a collective."""
    mine: dict[str, Tensor] = {}
    for adapter in adapters_of(parts):
        mine |= adapter.whole()
    group = parallel_state.get_pipeline_model_parallel_group()
    stages: list[Any] = [None] * group.size()
    dist.all_gather_object(stages, mine, group=group)
    if dist.get_rank() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value for stage in stages for name, value in stage.items()},
        folder / "adapter_model.safetensors",
    )
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": hf_checkpoint,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.split(".")[-3] for stage in stages for name in stage}),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n")


def short_name(module: str) -> str:
    """The last part of a module's name: `q_proj`."""
    return module.rpartition(".")[2]


def _key(module: str, side: str) -> str:
    return f"{short_name(module)}_{side}"


def _first_values(module: str, rank: int, rows: int, columns: int, seed: int) -> Sequence[Tensor]:
    """A uniform in +-1 / sqrt(columns), as PEFT's, drawn for this module alone; B 0."""
    source = np.random.default_rng([seed, *module.encode()])
    bound = 1 / math.sqrt(columns)
    a = torch.from_numpy(source.uniform(-bound, bound, (rank, columns)).astype(np.float32))
    return a, torch.zeros(rows, rank)
