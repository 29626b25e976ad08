"""How likely a model finds given tokens: forward passes only, over packed micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vime_agents.errors import ConfigError
from vime_agents.serving.hf_folder import same_tokenizer
from vime_agents.trainer import TopTokens
from vime_trainers.batching.cost import RowCost, read_row_cost
from vime_trainers.batching.pack import MicroBatch
from vime_trainers.batching.rows import rows_of_tokens
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.device import cpu_compat, device
from vime_trainers.megatron.families import ModelShape, read_model_shape
from vime_trainers.megatron.forward import run_micro_batches, selected_log_probs, selected_top_k
from vime_trainers.megatron.metrics import sum_over_ranks
from vime_trainers.megatron.micro_batches import micro_batches
from vime_trainers.megatron.model import PolicyModel, build_model
from vime_trainers.megatron.weights import load_hf_weights


class FrozenModel:
    """A model that is never trained, cut over the trainer's ranks as the policy is: a reference or a teacher.

    It needs megatron's parallel state, so a trainer comes first. Another size or family than the policy's is
    fine; another tokenizer is not.
    """

    def __init__(self, config: MegatronConfig, folder: str | Path, *, flag: str) -> None:
        """Load `folder`, a Hugging Face model; `flag` is what errors call it.

        Raises:
            ConfigError: no such model, another tokenizer than the policy's, or the parallel sizes do not
                divide it.
        """
        self.config, self.shape = config, read_model_shape(folder)
        self.row_cost = read_row_cost(folder)
        if not same_tokenizer(config.hf_checkpoint, folder):
            raise ConfigError(
                f"{flag} {folder}: its tokenizer is not that of --hf-checkpoint {config.hf_checkpoint}, so "
                "the same ids are not the same text; give a model of the same tokenizer"
            )
        with cpu_compat():
            self.parts = build_model(config, self.shape)
            load_hf_weights(self.parts, folder, self.shape)
        for part in self.parts:
            part.requires_grad_(False).eval()

    def logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[NDArray[np.float32]]:
        """As `vime_agents.trainer.Trainer.logprobs`; a collective."""
        return token_logprobs(
            self.parts,
            self.parts[-1],
            self.config,
            self.shape,
            self.row_cost,
            rows,
            temperature=temperature,
            masks=masks,
        )

    def top_logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        k: int,
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]],
        vocab_size: int,
    ) -> list[TopTokens]:
        """As `vime_trainers.sample_logprobs.Teacher.top_logprobs`; a collective."""
        table = rows_of_tokens(rows, masks)
        wanted = np.concatenate([row.mask for row in table])
        place = torch.from_numpy(np.cumsum(wanted) - 1).to(device())
        ids = torch.zeros((int(wanted.sum()), k), dtype=torch.int32, device=device())
        logprobs = torch.zeros((len(ids), k + 1), dtype=torch.float32, device=device())

        def store(micro: MicroBatch, hidden: Tensor) -> Tensor:
            if micro.selected.numel():
                where = place[micro.slots]
                found, logprobs[where] = selected_top_k(
                    self.parts[-1],
                    self.config,
                    self.shape,
                    micro,
                    hidden,
                    k,
                    temperature=temperature,
                    num_candidates=min(vocab_size, self.shape.vocab_size),
                )
                ids[where] = found.int()
            return hidden.new_zeros(())

        with cpu_compat(), torch.no_grad():
            packed, _ = micro_batches(table, self.config, self.row_cost)
            run_micro_batches(self.parts, packed, store, forward_only=True)
            sum_over_ranks(ids)
            sum_over_ranks(logprobs)
        ends = np.cumsum([row.mask.sum() for row in table])[:-1]
        parts = (np.split(x.cpu().numpy(), ends) for x in (ids, logprobs))
        return [TopTokens(ids=i, logprobs=x) for i, x in zip(*parts, strict=True)]


def token_logprobs(
    parts: Sequence[Any],
    model: PolicyModel,
    config: MegatronConfig,
    shape: ModelShape,
    cost: RowCost,
    rows: Sequence[NDArray[np.int32]],
    *,
    temperature: float,
    masks: Sequence[NDArray[np.bool_]] | None,
) -> list[NDArray[np.float32]]:
    """Log-prob of each selected token of each row given those before it, NaN elsewhere; on all ranks.

    `parts` is what the schedule runs, the model or its wrappers; `model` the part with the output layer.
    """
    table = rows_of_tokens(rows, masks)
    count = sum(len(row.inputs) for row in table)
    flat = torch.zeros(count, dtype=torch.float32, device=device())

    def store(micro: MicroBatch, hidden: Tensor) -> Tensor:
        if micro.selected.numel():
            found, *_ = selected_log_probs(model, config, shape, micro, hidden, temperature=temperature)
            flat[micro.slots] = found
        return hidden.new_zeros(())

    if count:
        with cpu_compat(), torch.no_grad():
            packed, _ = micro_batches(table, config, cost)
            run_micro_batches(parts, packed, store, forward_only=True)
            sum_over_ranks(flat)
    values = flat.cpu().numpy()
    if count:
        values[~np.concatenate([row.mask for row in table])] = np.nan
    found = [np.full(len(row), np.nan, np.float32) for row in rows]
    for whole, row in zip(found, table, strict=True):
        size = len(row.inputs)
        whole[1 : size + 1] = values[row.offset : row.offset + size]
    return found
