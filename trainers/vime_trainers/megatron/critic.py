"""A critic in the trainer's ranks: a model of the policy's kind whose head says what a state is worth.

Like the policy, its stages, blocks and rows are cut over the ranks; the head is whole on each rank of the
last stage. The value of the state in which token t was sampled is read where token t is predicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from vime_agents.errors import CheckpointError, ConfigError, RecordError
from vime_agents.serving.hf_folder import same_tokenizer
from vime_agents.trainer import Batch
from vime_trainers.batching.cost import read_row_cost
from vime_trainers.batching.pack import MicroBatch
from vime_trainers.batching.rows import VALUES, rows_of_samples, rows_of_tokens
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.supervised import value_loss
from vime_trainers.megatron.checkpoint import load_checkpoint, plan_checkpoint, save_checkpoint
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.device import cpu_compat, device
from vime_trainers.megatron.families import read_model_shape
from vime_trainers.megatron.forward import run_micro_batches
from vime_trainers.megatron.metrics import sum_over_ranks
from vime_trainers.megatron.micro_batches import micro_batches
from vime_trainers.megatron.model import build_model
from vime_trainers.megatron.optimizer import Schedule, make_optimizer, wrap
from vime_trainers.megatron.weights import load_hf_weights

HEAD = "score.weight"
"""The head's name in a Hugging Face folder: a sequence classifier's with one label, as of a reward model."""

_SUMS = ("loss", "count", "clipped", "value", "return", "return_squared", "error", "error_squared")


class ValueHead(MegatronModule):
    """Hidden states -> values, in float32."""

    def __init__(self, transformer: Any) -> None:
        super().__init__(config=transformer)
        self.weight = torch.nn.Parameter(torch.zeros(1, transformer.hidden_size, device=device()))

    def forward(self, hidden: Tensor) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens]."""
        return F.linear(hidden.float(), self.weight)[:, 0]


class Critic:
    """Values and their learning. Needs megatron's parallel state, so a trainer comes first."""

    def __init__(self, config: MegatronConfig) -> None:
        """Load it, with the head that the folder has, or else one that says 0 of every state.

        Args:
            config: the policy's, with `critic`.

        Raises:
            ConfigError: no such model, another tokenizer than the policy's, or the parallel sizes do not
                divide it.
        """
        assert config.critic is not None
        self.value_clip = config.critic.value_clip or None
        policy, self.config = config.hf_checkpoint, _own_config(config)
        config = self.config
        if not same_tokenizer(policy, config.hf_checkpoint):
            raise ConfigError(
                f"--critic-load {config.hf_checkpoint}: its tokenizer is not that of --hf-checkpoint "
                f"{policy}; give a model of the same tokenizer"
            )
        # Tied: nothing is read of an output layer, which the head takes the place of.
        self.shape = replace(read_model_shape(config.hf_checkpoint), tied=True)
        self.row_cost = read_row_cost(config.hf_checkpoint)
        with cpu_compat():
            self.parts = build_model(config, self.shape)
            load_hf_weights(self.parts, config.hf_checkpoint, self.shape)
            for part in self.parts:
                _put_head_on(part, Path(config.hf_checkpoint))
            self.model = self.parts[-1]
            self.ddp = wrap(config, self.parts)
            self.optimizer = make_optimizer(config, self.ddp)
            self.schedule = Schedule(config, self.optimizer)

    def values(
        self,
        rows: Sequence[NDArray[np.int32]],
        masks: Sequence[NDArray[np.bool_]],
        *,
        ends: bool = False,
    ) -> list[NDArray[np.float32]]:
        """[num_tokens + 1] of each row: the value of the state before each token that its mask selects.

        The last entry is the value after the whole row, with `ends`; NaN where nothing was asked for. The
        same on every rank.
        """
        longer = [np.append(row, np.int32(0)) for row in rows]  # what comes after a row is no input
        wanted = [np.append(mask, ends) for mask in masks]
        table = rows_of_tokens(longer, wanted)
        count = sum(len(row.inputs) for row in table)
        flat = torch.zeros(count, dtype=torch.float32, device=device())

        def store(micro: MicroBatch, hidden: Tensor) -> Tensor:
            if micro.selected.numel():
                flat[micro.slots] = self._values(micro, hidden)
            return hidden.new_zeros(())

        if count:
            with cpu_compat(), torch.no_grad():
                parts, _ = micro_batches(table, self.config, self.row_cost)
                run_micro_batches(self.ddp, parts, store, forward_only=True)
                sum_over_ranks(flat)
        found = flat.cpu().numpy()
        out = [np.full(len(row), np.nan, np.float32) for row in longer]
        for row, values in zip(table, out, strict=True):
            places = np.flatnonzero(row.mask)
            values[places + 1] = found[row.offset + places]
        return out

    def update(self, batch: Batch, refuse_non_finite: Callable[..., None]) -> dict[str, float]:
        """One optimizer step towards the returns of a batch that is not empty.

        `explained_variance` is 1 - Var(return - value) / Var(return) over trainable tokens, before the step.

        Raises:
            RecordError: a sample without values and returns.
            NonFiniteError: out of `refuse_non_finite`; the weights are as they were.
        """
        for sample in batch.samples:
            if sample.values is None or sample.returns is None:
                raise RecordError(f"sample {sample.id}: a critic learns from values and returns; it has none")
        started = time.perf_counter()
        rows = rows_of_samples(batch.samples)
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device())
        bad_slots: list[int] = []
        with cpu_compat():
            parts, _ = micro_batches(rows, self.config, self.row_cost)
            for part in self.ddp:
                part.zero_grad_buffer()
            self.optimizer.zero_grad()
            run_micro_batches(
                self.ddp,
                parts,
                lambda micro, hidden: self._loss(micro, hidden, sums, bad_slots),
                forward_only=False,
            )
            sum_over_ranks(sums)
            totals = dict(zip(_SUMS, sums.tolist(), strict=True))
            refuse_non_finite(totals["loss"], "value loss", rows, bad_slots)
            self.optimizer.prepare_grads()
            norm = float(self.optimizer.get_grad_norm())
            refuse_non_finite(norm, "critic's gradient norm", rows, [])
            self.schedule.advance()
            self.optimizer.step()
        return _metrics(totals) | {
            "critic_grad_norm": norm,
            "critic_lr": self.schedule.rate,
            "critic_s": time.perf_counter() - started,
        }

    def save(self, folder: Path) -> None:
        """Write into the empty folder. Raises CheckpointError; a collective."""
        with cpu_compat():
            save_checkpoint(folder, self.parts, self.optimizer, self._counters())

    def plan_save(self, folder: Path) -> AsyncRequest:
        """What `save` would write, for a `BackgroundSave`. Raises CheckpointError; a collective."""
        with cpu_compat():
            return plan_checkpoint(folder, self.parts, self.optimizer, self._counters())

    def _counters(self) -> dict[str, Any]:
        return {"schedule": self.schedule.state_dict()}

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, under any parallel sizes. Raises CheckpointError; a collective."""
        if not folder.is_dir():
            raise CheckpointError(f"no critic in the checkpoint {folder.parent}: it was saved without one")
        with cpu_compat():
            counters = load_checkpoint(folder, self.parts, self.optimizer)
            self.schedule.load_state_dict(counters["schedule"])

    def _values(self, micro: MicroBatch, hidden: Tensor) -> Tensor:
        """[num_selected]; each tensor-parallel rank computes them all, so no gradient is summed over them."""
        if self.config.sequence_parallel:
            group = parallel_state.get_tensor_model_parallel_group()
            hidden = gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=False, group=group
            )
        return self.model.output_layer(hidden.squeeze(1)[micro.selected])

    def _loss(self, micro: MicroBatch, hidden: Tensor, sums: Tensor, bad_slots: list[int]) -> Tensor:
        if not micro.selected.numel():
            return hidden.float().sum() * 0.0 + self.model.output_layer.weight.sum() * 0.0
        values = self._values(micro, hidden)
        weights, old, returns = (
            micro.values[VALUES.index(name)] for name in ("weights", "values", "returns")
        )
        everything = torch.ones_like(values, dtype=torch.bool)
        losses, clipped = value_loss(values, old, returns, everything, value_clip=self.value_clip)
        loss = (weights * losses).sum()
        if not torch.isfinite(loss):
            bad_slots.extend(micro.slots[~torch.isfinite(losses)].tolist())
        found, target = values.detach().double(), returns.double()
        error = target - found
        parts = (
            loss.detach(),
            everything.sum(),
            clipped.sum(),
            found.sum(),
            target.sum(),
            target.square().sum(),
            error.sum(),
            error.square().sum(),
        )
        sums += torch.stack([part.double() for part in parts])
        return loss


def _own_config(config: MegatronConfig) -> MegatronConfig:
    critic = config.critic
    assert critic is not None
    return replace(
        config,
        critic=None,
        hf_checkpoint=critic.load or config.hf_checkpoint,
        lr=config.lr if critic.lr is None else critic.lr,
        lr_warmup_iters=critic.lr_warmup_iters,
        lr_decay_iters=critic.lr_decay_iters or config.lr_decay_iters,
        moe_aux_loss_coeff=0.0,
        loss=LossConfig(),
        lora=None,
        only_train_params_name_list=None,
        freeze_params_name_list=None,
    )


def _put_head_on(model: Any, folder: Path) -> None:
    """Give the last stage a head in place of its output layer, which is not kept."""
    model.share_embeddings_and_output_weights = False
    if not model.post_process:
        return
    head = ValueHead(model.config)
    stored = _stored_head(folder)
    if stored is not None:
        if stored.shape != head.weight.shape:
            raise ConfigError(
                f"--critic-load {folder}: {HEAD} is {tuple(stored.shape)}, but a value is one number: need "
                f"{tuple(head.weight.shape)}"
            )
        with torch.no_grad():
            head.weight.copy_(stored)
    model.output_layer = head


def _stored_head(folder: Path) -> Tensor | None:
    with ExitStack() as stack:
        for path in sorted(folder.glob("*.safetensors")):
            tensors = stack.enter_context(safe_open(path, framework="pt"))
            if HEAD in tensors.keys():  # noqa: SIM118 - not iterable
                return tensors.get_tensor(HEAD)
    return None


def _metrics(totals: dict[str, float]) -> dict[str, float]:
    count = totals["count"]
    variance = totals["return_squared"] / count - (totals["return"] / count) ** 2
    unexplained = totals["error_squared"] / count - (totals["error"] / count) ** 2
    found = {
        "value_loss": totals["loss"],
        "value_mean": totals["value"] / count,
        "return_mean": totals["return"] / count,
        "value_clip_fraction": totals["clipped"] / count,
    }
    # Of returns that are all alike there is nothing to explain.
    if math.isfinite(unexplained) and variance > 1e-12:
        found["explained_variance"] = 1 - unexplained / variance
    return found
