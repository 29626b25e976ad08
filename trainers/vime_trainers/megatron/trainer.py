"""`MegatronTrainer`: one optimizer step per batch, with megatron-core's model, schedules and optimizer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import _world

from vime_agents.errors import ConfigError, NonFiniteError
from vime_agents.trainer import Batch
from vime_trainers.batching.cost import mfu, read_row_cost
from vime_trainers.batching.pack import MicroBatch
from vime_trainers.batching.rows import Row, rows_of_samples
from vime_trainers.losses.custom import custom_loss, load_custom_loss
from vime_trainers.losses.distribution import log_probs_and_entropy
from vime_trainers.losses.metrics import metrics_of
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.token_loss import TokenInputs, TokenLoss, token_loss
from vime_trainers.machine import peak_memory_bytes, peak_tflops
from vime_trainers.megatron.checkpoint import (
    BackgroundSave,
    load_checkpoint,
    plan_checkpoint,
    save_checkpoint,
)
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.critic import Critic
from vime_trainers.megatron.device import cpu_compat, has_cuda, init_process_group, install_cpu_shims
from vime_trainers.megatron.experts import take_balance_loss
from vime_trainers.megatron.families import read_model_shape
from vime_trainers.megatron.forward import run_micro_batches, selected_log_probs, selected_logits
from vime_trainers.megatron.lora import save_peft
from vime_trainers.megatron.metrics import Totals, grad_norms_by_part, largest_over_ranks
from vime_trainers.megatron.micro_batches import micro_batches
from vime_trainers.megatron.model import build_model, check_policy, virtual_pipeline_size
from vime_trainers.megatron.optimizer import Schedule, make_optimizer, wrap
from vime_trainers.megatron.scoring import FrozenModel, token_logprobs
from vime_trainers.megatron.trainable import choose_trainable
from vime_trainers.megatron.weights import export_hf_weights, load_hf_weights
from vime_trainers.sample_logprobs import FrozenField, check_top_k, completed


class MegatronTrainer:
    """Implements `vime_agents.trainer.Trainer`; every rank makes one and calls the same methods.

    The process group is the one that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe; without them the
    trainer is alone. Every rank gets the whole batch and takes its own part of it.
    """

    def __init__(self, config: MegatronConfig) -> None:
        self.config = config
        path = config.loss.custom_loss_function_path
        self._custom_loss = None if path is None else load_custom_loss(path)
        self.shape = read_model_shape(config.hf_checkpoint)
        self.row_cost = read_row_cost(config.hf_checkpoint)
        self.version = 0
        self.num_skipped = 0
        install_cpu_shims()
        with cpu_compat():
            self._owns_process_group = init_process_group()
            check_policy(config, self.shape)
            _init_model_parallel(config, virtual_pipeline_size(config, self.shape))
            self.parts = build_model(config, self.shape)
            self.model = self.parts[-1]  # the only one without a virtual pipeline
            load_hf_weights(self.parts, config.hf_checkpoint, self.shape)
            choose_trainable(self.parts, config, self.shape)
            self.ddp = wrap(config, self.parts)
            self.optimizer = make_optimizer(config, self.ddp)
            self.schedule = Schedule(config, self.optimizer)
        self.frozen = _frozen_models(config, self.shape.vocab_size)
        self.critic = None if config.critic is None else Critic(config)
        self._background = BackgroundSave()

    # -------------------------------------------------------------------------------------------- update

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step. An empty batch makes none, and is counted in `num_skipped_updates`.

        What a reference or a teacher (`ref_load`, `opd_teacher_load`) says of the samples is worked out here,
        unless they say it already.

        Returns:
            Metrics, the same on every rank. `loss` and `pg_loss` are weighted as in the loss; `entropy`,
            `kl_k3` (of rollout and trainer), the fractions, `ratio_mean` and the mean difference are means
            over trainable tokens; `ess` is the effective share of them under the importance weights.

        Raises:
            NonFiniteError: NaN or infinity in the loss or the gradient; the weights are as they were.
            ConfigError: a row is longer than `max_tokens_per_gpu`.
            RecordError: a sample lacks log-probs that the loss reads.
        """
        loss = self.config.loss
        batch = completed(batch, self.frozen, loss, vocab_size=self.shape.vocab_size)
        if not batch.samples:
            self.num_skipped += 1
            return {
                "num_skipped_updates": float(self.num_skipped),
                "num_tokens": 0.0,
                "num_trainable_tokens": 0.0,
            }
        started = time.perf_counter()
        rows = rows_of_samples(batch.samples, teacher_top=loss.opd_top_k > 0)
        with cpu_compat():
            parts, layout = micro_batches(rows, self.config, self.row_cost)
            totals = Totals()
            for part in self.ddp:
                part.zero_grad_buffer()
            self.optimizer.zero_grad()
            run_micro_batches(
                self.ddp,
                parts,
                lambda micro, hidden: self._loss(micro, hidden, batch.temperature, totals),
                forward_only=False,
                num_batch_rows=len(rows),
            )
            sums, max_diff = totals.reduce()
            custom = {} if self._custom_loss is None else totals.reduce_custom()
            balance = (
                {"moe_balance_loss": take_balance_loss(self.parts)} if self.config.moe_aux_loss_coeff else {}
            )
            computed = time.perf_counter()
            self._refuse_non_finite(sums["loss"], "loss", rows, totals.bad_slots)
            self.optimizer.prepare_grads()
            norm = self.optimizer.get_grad_norm()
            self._refuse_non_finite(norm, "gradient norm", rows, [])
            norms = grad_norms_by_part(self.ddp, self.optimizer)
            self.schedule.advance()
            self.optimizer.step()
        self.version += 1
        done = time.perf_counter()
        return (
            custom
            | metrics_of(sums, max_diff, totals.abs_diffs.cpu(), loss)
            | norms
            | balance
            | self._model_flops(rows, done - started)
            | {
                "grad_norm": float(norm),
                "lr": self.schedule.rate,
                "num_tokens": float(batch.num_tokens),
                "num_trainable_tokens": float(batch.num_trainable),
                "num_micro_batches": float(len(parts)),
                "packing_efficiency": layout.efficiency,
                "dp_imbalance": layout.imbalance,
                "num_skipped_updates": float(self.num_skipped),
                "forward_backward_s": computed - started,
                "optimizer_s": done - computed,
                "tokens_per_s": batch.num_tokens / (done - started),
                "peak_memory_gb": largest_over_ranks(peak_memory_bytes()) / 1e9,
            }
        )

    def _model_flops(self, rows: Sequence[Row], seconds: float) -> dict[str, float]:
        """Their utilisation, where the device's peak is known."""
        peak = peak_tflops(self.config.peak_tflops)
        if peak is None:
            return {}
        forward = sum(self.row_cost(len(row.inputs), int(row.mask.sum())) for row in rows)
        return {"mfu": mfu(forward, seconds, peak * dist.get_world_size())}

    def _loss(self, micro: MicroBatch, hidden: Tensor, temperature: float, totals: Totals) -> Tensor:
        shares_rows = self.config.loss.needs_rows and self.config.context_parallel_size > 1
        if not micro.selected.numel() and not shares_rows:
            return hidden.float().sum() * 0.0  # still part of the graph: every rank runs the same backward
        log_probs, result = self._token_loss(micro, hidden, temperature)
        totals.add(result)
        if not torch.isfinite(result.loss):
            totals.bad_slots.extend(micro.slots[~torch.isfinite(log_probs)].tolist())
        return result.loss

    def _token_loss(self, micro: MicroBatch, hidden: Tensor, temperature: float) -> tuple[Tensor, TokenLoss]:
        """Log-probs of the selected tokens, and their loss."""
        config, place = self.config, (self.model, self.config, self.shape, micro, hidden)
        logits = top_log_probs = None
        top = micro.teacher_top
        if self._custom_loss is None:
            log_probs, entropy, top_log_probs = selected_log_probs(
                *place,
                temperature=temperature,
                entropy_grad=config.loss.entropy_coef != 0,
                top_ids=None if top is None else top.ids,
            )
        else:
            logits = selected_logits(*place, temperature=temperature)
            log_probs, entropy = log_probs_and_entropy(logits, micro.targets)
        rollout, advantages, weights, old, reference, teacher, *_ = micro.values
        tokens = TokenInputs(
            log_probs=log_probs,
            entropy=entropy,
            rollout_log_probs=rollout,
            advantages=advantages,
            weights=weights,
            rows=Rows(micro.rows, micro.num_rows, _add_up_row_parts),
            old_log_probs=old,
            reference_log_probs=reference,
            teacher_log_probs=teacher,
            top_log_probs=top_log_probs,
            teacher_top_log_probs=None if top is None else top.log_probs,
        )
        if self._custom_loss is None or logits is None:
            return log_probs, token_loss(config.loss, tokens)
        return log_probs, custom_loss(self._custom_loss, config.loss, tokens, micro.targets, logits)

    def _refuse_non_finite(self, value: float, what: str, rows: Sequence[Row], bad_slots: list[int]) -> None:
        """All ranks see the same value, so all of them raise."""
        if math.isfinite(value):
            return
        found: list[Any] = [None] * dist.get_world_size()
        ends = np.cumsum([len(row.inputs) for row in rows])
        dist.all_gather_object(found, sorted(set(np.searchsorted(ends, bad_slots, side="right").tolist())))
        indices = sorted({i for part in found for i in part}) or list(range(len(rows)))
        raise NonFiniteError.of_update(self.version, what, value, [rows[i].id for i in indices])

    # ----------------------------------------------------------------------------------- what others read

    def logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Log-prob of each token of each row given those before it; entry 0 of a row is NaN.

        With `masks`, [num_tokens] each, only of the tokens that they select; NaN elsewhere.
        """
        return token_logprobs(
            self.ddp,
            self.model,
            self.config,
            self.shape,
            self.row_cost,
            rows,
            temperature=temperature,
            masks=masks,
        )

    def values(
        self,
        rows: Sequence[NDArray[np.int32]],
        masks: Sequence[NDArray[np.bool_]],
        *,
        ends: bool = False,
    ) -> list[NDArray[np.float32]]:
        """As `vime_agents.trainer.CriticTrainer.values`. Raises ConfigError where there is no critic."""
        return self._given_critic().values(rows, masks, ends=ends)

    def update_critic(self, batch: Batch) -> dict[str, float]:
        """As `vime_agents.trainer.CriticTrainer.update_critic`; nothing of an empty batch.

        Raises:
            NonFiniteError: NaN or infinity in the loss or the gradient; the weights are as they were.
            ConfigError: there is no critic, or a row is longer than `max_tokens_per_gpu`.
            RecordError: a sample lacks values or returns.
        """
        critic = self._given_critic()
        if not batch.samples:
            return {"num_tokens": 0.0, "num_trainable_tokens": 0.0}
        counts = {
            "num_tokens": float(batch.num_tokens),
            "num_trainable_tokens": float(batch.num_trainable),
        }
        return counts | critic.update(batch, self._refuse_non_finite)

    def _given_critic(self) -> Critic:
        if self.critic is None:
            raise ConfigError("this trainer has no critic: give MegatronConfig.critic")
        return self.critic

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor), streaming; exhaust it on every rank before the next update."""
        return export_hf_weights(self.parts, self.shape, dtype)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape, in the order of `weights`."""
        return self.shape.hf_shapes()

    def save_adapter(self, folder: Path) -> None:
        """Write what `lora` trained into the folder, as PEFT does; the ranks need not share a disk.

        Raises:
            ConfigError: there are no adapters.
        """
        if self.config.lora is None:
            raise ConfigError("this trainer has no adapters: give MegatronConfig.lora")
        save_peft(self.parts, self.config.lora, self.config.hf_checkpoint, folder)

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, counters and random state into the empty folder.

        Raises:
            CheckpointError: the folder is missing or not empty, or cannot be written.
            ContractError: a save that was begun is not finished.
        """
        self._background.refuse_unfinished()
        with cpu_compat():
            save_checkpoint(folder, self.parts, self.optimizer, self._counters())
        if self.critic is not None:
            self.critic.save(self._critic_folder(folder))

    def begin_save(self, folder: Path) -> None:
        """Begin what `save` does and return; updates may go on, and change nothing of what is written.

        The checkpoint is complete once `finish_saves` says so. On the CPU the memory that updates write to is
        held twice until then, on accelerators all that is saved is copied to the host's memory.

        Raises:
            CheckpointError: the folder is missing or not empty, or cannot be written.
            ContractError: the save that was begun before is not finished.
        """
        self._background.refuse_unfinished()
        with cpu_compat():
            requests = [plan_checkpoint(folder, self.parts, self.optimizer, self._counters())]
            if self.critic is not None:
                requests.append(self.critic.plan_save(self._critic_folder(folder)))
            self._background.begin(folder, requests)

    def finish_saves(self, *, wait: bool) -> bool:
        """Whether the save that was begun, if any, is complete; with `wait`, once it is.

        Raises:
            CheckpointError: it could not be written.
        """
        with cpu_compat():
            return self._background.finish(wait=wait)

    def _counters(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "num_skipped": self.num_skipped,
            "schedule": self.schedule.state_dict(),
        }

    def _critic_folder(self, folder: Path) -> Path:
        if dist.get_rank() == 0:
            (folder / "critic").mkdir()
        dist.barrier()
        return folder / "critic"

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; the parallel sizes may differ from those that it was saved with.

        Raises:
            CheckpointError: there is no complete checkpoint, or it is of another model or optimizer.
        """
        with cpu_compat():
            counters = load_checkpoint(folder, self.parts, self.optimizer)
            self.schedule.load_state_dict(counters["schedule"])
        if self.critic is not None:
            self.critic.load(folder / "critic")
        self.version, self.num_skipped = counters["version"], counters["num_skipped"]

    def close(self) -> None:
        """Give up the parallel state, and the process group if the trainer made it."""
        # Megatron only forgets its groups; each would keep its connections and threads.
        groups = set(parallel_state._global_process_group_list or ())
        parallel_state.destroy_model_parallel()
        for group in groups & set(_world.pg_map) - {dist.group.WORLD}:
            dist.destroy_process_group(group)
        if self._owns_process_group:
            dist.destroy_process_group()


def _frozen_models(config: MegatronConfig, vocab_size: int) -> dict[FrozenField, FrozenModel]:
    """What the trainer itself can fill in of the fields that the loss reads."""
    known: dict[FrozenField, tuple[str, str | None]] = {
        "reference_logprobs": ("--ref-load", config.ref_load),
        "teacher_logprobs": ("--opd-teacher-load", config.opd_teacher_load),
        "teacher_top": ("--opd-teacher-load", config.opd_teacher_load),
    }
    wanted = config.loss.sample_fields
    found: dict[FrozenField, FrozenModel] = {
        field: FrozenModel(config, folder, flag=flag)
        for field, (flag, folder) in known.items()
        if folder is not None and field in wanted
    }
    if "teacher_top" in found:
        theirs = found["teacher_top"].shape.vocab_size
        check_top_k(config.loss.opd_top_k, vocab_size=vocab_size, teacher_vocab_size=theirs)
    return found


def _add_up_row_parts(totals: Tensor) -> None:
    group = parallel_state.get_context_parallel_group()
    if group.size() > 1:
        dist.all_reduce(totals, group=group)


def _init_model_parallel(config: MegatronConfig, virtual_pipeline_size: int | None) -> None:
    world = dist.get_world_size()
    if world % config.model_parallel_size:
        raise ConfigError(
            f"{world} ranks cannot hold whole replicas of tensor x pipeline x context parallel = "
            f"{config.model_parallel_size} ranks: make the number of ranks a multiple of it"
        )
    shared = config.expert_model_parallel_size * config.expert_tensor_size
    if world // config.pipeline_model_parallel_size % shared:
        raise ConfigError(
            f"--expert-model-parallel-size {config.expert_model_parallel_size} * "
            f"--expert-tensor-parallel-size {config.expert_tensor_size} = {shared} does not divide the "
            f"{world // config.pipeline_model_parallel_size} ranks of a pipeline stage"
        )
    parallel_state.initialize_model_parallel(
        config.tensor_model_parallel_size,
        config.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=virtual_pipeline_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_size,
    )
    torch.manual_seed(config.seed)
    # Without an accelerator there is no generator to track; nothing draws from it, since dropout is 0.
    model_parallel_cuda_manual_seed(config.seed, inference_rng_tracker=not has_cuda())
