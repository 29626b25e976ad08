"""Weights in and out of the model, under their Hugging Face names: streaming, each rank only its own part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_trainers.megatron.device import device
from vime_trainers.megatron.families import FLOAT32_TENSORS, Mapping, ModelShape, mapping_of, merge, split
from vime_trainers.megatron.families.names import whole_model_name
from vime_trainers.megatron.model import PolicyModel


@torch.no_grad()
def load_hf_weights(parts: Sequence[PolicyModel], folder: str | Path, shape: ModelShape) -> None:
    """Fill the model from `*.safetensors`; each rank reads its own slices only, cast to the model's dtype.

    Tensors that the model does not have are left out: DeepSeek-V3's layers that predict several tokens.

    Raises:
        ConfigError: a tensor is missing, or its shape is not what `config.json` says.
    """
    expected = shape.hf_shapes()
    with ExitStack() as stack:
        files = _open_checkpoint(Path(folder), stack)
        for name, tensor in named_tensors(parts, shape):
            line = source_of(name, shape)
            rank, size = _cut_over(line)
            slices = []
            for hf_name in line.hf_names:
                if hf_name not in files:
                    raise ConfigError(f"--hf-checkpoint {folder}: no tensor {hf_name!r}, which {name} needs")
                whole = files[hf_name].get_slice(hf_name)
                if tuple(whole.get_shape()) != expected[hf_name]:
                    raise ConfigError(
                        f"--hf-checkpoint {folder}: {hf_name} is {tuple(whole.get_shape())}, but config.json "
                        f"says {expected[hf_name]}"
                    )
                slices.append(_read_slice(whole, line, rank, size))
            value = merge(slices, line.merge, shape)
            # Rows past the vocabulary exist only to make it divide by the ranks.
            tensor[: value.shape[0]].copy_(value)
            tensor[value.shape[0] :].zero_()


def _open_checkpoint(folder: Path, stack: ExitStack) -> dict[str, Any]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    else:
        names = {p.name for p in folder.glob("*.safetensors")}
    if not names:
        raise ConfigError(f"--hf-checkpoint {folder}: no *.safetensors file there")
    handles = [stack.enter_context(safe_open(folder / name, framework="pt")) for name in sorted(names)]
    return {key: handle for handle in handles for key in handle.keys()}  # noqa: SIM118


def _cut_over(line: Mapping) -> tuple[int, int]:
    """This rank's place among those that a tensor is cut over, and their number."""
    if line.expert:
        group = parallel_state.get_expert_tensor_parallel_group()
    else:
        group = parallel_state.get_tensor_model_parallel_group()
    return group.rank(), group.size()


def _read_slice(whole: Any, line: Mapping, rank: int, size: int) -> Tensor:
    if line.cut == "whole":
        return whole[:]
    dim = 0 if line.cut == "rows" else 1
    width = -(-whole.get_shape()[dim] // size)
    part = slice(rank * width, (rank + 1) * width)
    return whole[part] if dim == 0 else whole[:, part]


def source_of(name: str, shape: ModelShape) -> Mapping:
    """Where to read a tensor from: with tied weights, the last stage's output layer is the embedding."""
    if name == "output_layer.weight" and shape.tied:
        return mapping_of("embedding.word_embeddings.weight", shape)
    return mapping_of(name, shape)


def named_tensors(parts: Sequence[PolicyModel], shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    """What this rank has of the checkpoint, its layers and experts numbered over the whole model."""
    first_expert = 0
    if shape.experts is not None:
        group = parallel_state.get_expert_model_parallel_group()
        first_expert = group.rank() * (shape.experts.num_experts // group.size())
    for part in parts:
        layers = {i: layer.layer_number - 1 for i, layer in enumerate(part.decoder.layers)}
        for name, tensor in _stored(part):
            yield whole_model_name(name, layers=layers, first_expert=first_expert), tensor


def _stored(part: PolicyModel) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in part.named_parameters():
        if "_lora." not in name:  # those are in what their weight's export says: see `lora.py`
            yield name, parameter
    for name, buffer in part.named_buffers():
        if name.endswith(".expert_bias"):
            yield name, buffer


# ------------------------------------------------------------------------------------------ weights out


@torch.no_grad()
def export_hf_weights(
    parts: Sequence[PolicyModel], shape: ModelShape, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, whole tensor), in the order of `ModelShape.hf_shapes`; tied weights come once.

    A collective; the first model replica's ranks get every tensor, the others none. Exhaust it on all ranks.
    The tensors may share memory with the model: use them before the next update.
    """
    mine: dict[str, tuple[str, Tensor]] = {}
    for name, tensor in named_tensors(parts, shape):
        if not (name == "output_layer.weight" and shape.tied):
            mine |= dict.fromkeys(mapping_of(name, shape).hf_names, (name, tensor))
    first_replica = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    owners = _Owners.gather(mine, shape)
    last: tuple[str, list[Tensor]] = ("", [])
    for hf_name, hf_shape in shape.hf_shapes().items():
        far = owners.expert_source(hf_name)
        if not (first_replica or far is not None):
            continue
        kept = dtype or parts[0].config.params_dtype
        if hf_name.endswith(FLOAT32_TENSORS):
            kept = torch.float32
        whole = None
        if hf_name in mine:
            name, tensor = mine[hf_name]
            if last[0] != name:
                last = (name, _gather_parts(name, tensor, shape))
            whole = last[1][mapping_of(name, shape).hf_names.index(hf_name)]
            whole = whole[: hf_shape[0]].to(kept).contiguous()
        if far is not None:
            whole = _broadcast(whole, hf_shape, kept, far, owners.stage_group)
        if first_replica:
            yield hf_name, _from_stage(whole, hf_shape, kept, owners.stage_of[hf_name])


@dataclass(frozen=True, slots=True)
class _Owners:
    """Where each tensor is to be had."""

    stage_of: dict[str, int]
    """Hugging Face name -> pipeline stage."""
    sources: dict[str, int]
    """Of this stage's experts that other replicas may have: Hugging Face name -> a rank that has it."""
    stage_group: dist.ProcessGroup
    """All ranks of this pipeline stage."""

    @classmethod
    def gather(cls, mine: dict[str, Any], shape: ModelShape) -> _Owners:
        pp_group = parallel_state.get_pipeline_model_parallel_group()
        stage_group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        sources: dict[str, int] = {}
        if shape.experts is not None and _experts_span_replicas():
            experts = [n for n, (name, _) in mine.items() if mapping_of(name, shape).expert]
            for rank, names in zip(
                dist.get_process_group_ranks(stage_group), _all_gather(experts, stage_group), strict=True
            ):
                for name in names:
                    sources.setdefault(name, rank)
        held = sorted({*mine, *sources})
        stage_of = {name: i for i, names in enumerate(_all_gather(held, pp_group)) for name in names}
        return cls(stage_of, sources, stage_group)

    def expert_source(self, hf_name: str) -> int | None:
        """A rank to get an expert of this stage from; None: not an expert, or every replica has it."""
        return self.sources.get(hf_name)


def _experts_span_replicas() -> bool:
    """Whether the ranks that share the experts are of several replicas of everything else."""
    tensor = parallel_state.get_tensor_model_parallel_group().size()
    experts = parallel_state.get_expert_tensor_and_model_parallel_group().size()
    return parallel_state.get_expert_model_parallel_world_size() > 1 or experts > tensor


def _all_gather(value: Any, group: dist.ProcessGroup) -> list[Any]:
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, value, group=group)
    return found


def _gather_parts(name: str, tensor: Tensor, shape: ModelShape) -> list[Tensor]:
    """The Hugging Face tensors of one parameter, gathered over the ranks that it is cut over."""
    line = mapping_of(name, shape)
    merged = getattr(tensor, "merged", None)
    parts = split(tensor.detach() if merged is None else merged(tensor), line.merge, shape)
    if line.expert:
        group = parallel_state.get_expert_tensor_parallel_group()
    else:
        group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1 or line.cut == "whole":
        return parts
    dim = 0 if line.cut == "rows" else 1
    whole = []
    for part in parts:
        shards = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(shards, part.contiguous(), group=group)
        whole.append(torch.cat(shards, dim=dim))
    return whole


def _from_stage(whole: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, stage: int) -> Tensor:
    """Hand a tensor from the pipeline stage that has it to all others."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() > 1:
        whole = _broadcast(whole, shape, dtype, dist.get_global_rank(group, stage), group)
    assert whole is not None
    return whole


def _broadcast(
    whole: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, source: int, group: dist.ProcessGroup
) -> Tensor:
    if whole is None or source != dist.get_rank():
        whole = torch.empty(shape, dtype=dtype, device=device())  # never the model's own memory
    dist.broadcast(whole, src=source, group=group)
    return whole
