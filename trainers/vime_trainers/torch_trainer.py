"""`TorchTrainer`: the trainer contract on a transformers model, without Megatron; an oracle of its tests too.

One process, float32, right-padded micro-batches. Losses, batches and samples are the same as everywhere.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from vime_agents.errors import CheckpointError, ConfigError, NonFiniteError
from vime_agents.serving.hf_folder import same_tokenizer
from vime_agents.trainer import Batch, TopTokens
from vime_trainers.batching.cost import mfu, read_row_cost
from vime_trainers.batching.pack import TopTensors, top_tensors
from vime_trainers.batching.rows import Row, rows_of_samples, rows_of_tokens
from vime_trainers.losses.custom import custom_loss, load_custom_loss
from vime_trainers.losses.distribution import log_probs_and_entropy, top_log_probs
from vime_trainers.losses.gradient_parts import part_of
from vime_trainers.losses.histogram import NUM_BINS
from vime_trainers.losses.metrics import metrics_of
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.token_loss import SUMS, TokenInputs, TokenLoss, token_loss
from vime_trainers.machine import peak_memory_bytes
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.sample_logprobs import FrozenField, check_top_k, completed
from vime_trainers.torch_settings import refuse_megatron_settings

_FILE = "trainer.pt"


class TorchTrainer:
    """Implements `vime_agents.trainer.Trainer` in one process."""

    def __init__(self, config: MegatronConfig) -> None:
        """Load the model.

        Raises:
            ConfigError: a setting that only the Megatron trainer has, or a model that cannot be exported.
        """
        refuse_megatron_settings(config)
        self.config = config
        path = config.loss.custom_loss_function_path
        self._custom_loss = None if path is None else load_custom_loss(path)
        self.version = self.num_skipped = 0
        torch.manual_seed(config.seed)
        self.model = _load(config.hf_checkpoint)
        self._row_cost = None if config.peak_tflops is None else read_row_cost(config.hf_checkpoint)
        self._names = _exported_names(self.model, config.hf_checkpoint)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]  # as Megatron has it
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self.frozen = _frozen_models(config, self.model.config.vocab_size)

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step. An empty batch makes none, and is counted in `num_skipped_updates`.

        Raises:
            NonFiniteError: NaN or infinity in the loss or the gradient; the weights are as they were.
            ConfigError: a row is longer than `max_tokens_per_gpu`.
            RecordError: a sample lacks log-probs that the loss reads.
        """
        loss = self.config.loss
        batch = completed(batch, self.frozen, loss, vocab_size=self.model.config.vocab_size)
        if not batch.samples:
            self.num_skipped += 1
            skipped = float(self.num_skipped)
            return {"num_skipped_updates": skipped, "num_tokens": 0.0, "num_trainable_tokens": 0.0}
        started = time.perf_counter()
        rows = rows_of_samples(batch.samples, teacher_top=loss.opd_top_k > 0)
        parts = padded(rows, self.config.max_tokens_per_gpu)
        self.optimizer.zero_grad()
        sums, diffs = (torch.zeros(n, dtype=torch.float64) for n in (len(SUMS), NUM_BINS))
        largest, custom = 0.0, Counter[str]()
        for part in parts:
            result = self._loss(part, batch.temperature)
            if not torch.isfinite(result.loss):
                ids = [rows[i].id for i in part.indices]
                raise NonFiniteError.of_update(self.version, "loss", result.loss.item(), ids)
            result.loss.backward()
            sums += result.sums
            diffs += result.abs_diffs
            largest = max(largest, float(result.max_abs_diff))
            for name, value in result.custom.items():
                custom[name] += value.item()
        norm = float(torch.nn.utils.get_total_norm(list(self._gradients())))
        if not math.isfinite(norm):
            raise NonFiniteError.of_update(self.version, "gradient norm", norm, [row.id for row in rows])
        norms = self._grad_norms_by_part()
        computed = time.perf_counter()
        if self.config.clip_grad:
            torch.nn.utils.clip_grads_with_norm_(
                self.model.parameters(), self.config.clip_grad, torch.tensor(norm)
            )
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.version += 1
        done = time.perf_counter()
        return {
            **custom,
            **self._utilisation(rows, done - started),
            **metrics_of(dict(zip(SUMS, sums.tolist(), strict=True)), largest, diffs, loss),
            **norms,
            "grad_norm": norm,
            "lr": rate,
            "num_tokens": float(batch.num_tokens),
            "num_trainable_tokens": float(batch.num_trainable),
            "num_micro_batches": float(len(parts)),
            "packing_efficiency": sum(len(r.inputs) for r in rows) / sum(p.ids.numel() for p in parts),
            "num_skipped_updates": float(self.num_skipped),
            "forward_backward_s": computed - started,
            "optimizer_s": done - computed,
            "tokens_per_s": batch.num_tokens / (done - started),
            "peak_memory_gb": peak_memory_bytes() / 1e9,
        }

    def _utilisation(self, rows: Sequence[Row], seconds: float) -> dict[str, float]:
        if self._row_cost is None or self.config.peak_tflops is None:
            return {}
        forward = sum(self._row_cost(len(row.inputs), int(row.mask.sum())) for row in rows)
        return {"mfu": mfu(forward, seconds, self.config.peak_tflops)}

    def _loss(self, part: PaddedRows, temperature: float) -> TokenLoss:
        logits = _selected_logits(self.model, part) / temperature
        log_probs, entropy = log_probs_and_entropy(logits, part.targets)
        rollout, advantages, weights, old, reference, teacher, *_ = part.values
        top = part.teacher_top
        tokens = TokenInputs(
            log_probs=log_probs,
            entropy=entropy,
            rollout_log_probs=rollout,
            advantages=advantages,
            weights=weights,
            rows=Rows(part.rows, len(part.indices)),
            old_log_probs=old,
            reference_log_probs=reference,
            teacher_log_probs=teacher,
            top_log_probs=None if top is None else top_log_probs(logits, top.ids),
            teacher_top_log_probs=None if top is None else top.log_probs,
        )
        if self._custom_loss is None:
            return token_loss(self.config.loss, tokens)
        return custom_loss(self._custom_loss, self.config.loss, tokens, part.targets, logits)

    def _grad_norms_by_part(self) -> dict[str, float]:
        squares: Counter[str] = Counter()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                squares[part_of(name)] += parameter.grad.double().square().sum().item()  # type: ignore[assignment]
        return {f"grad_norm/{part}": math.sqrt(value) for part, value in sorted(squares.items())}

    def _gradients(self) -> Iterator[Tensor]:
        return (p.grad for p in self.model.parameters() if p.grad is not None)

    def _rate(self) -> float:
        warmup = self.config.lr_warmup_iters
        return self.config.lr * min(1.0, (self.version + 1) / warmup) if warmup else self.config.lr

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
        return _logprobs(self.model, self.config, rows, temperature, masks)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor), in the order of `weight_shapes`; they share memory with the model."""
        state = self.model.state_dict()
        for name in self._names:
            yield name, state[name].to(dtype or state[name].dtype)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape; tied weights come once."""
        state = self.model.state_dict()
        return {name: tuple(state[name].shape) for name in self._names}

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, counters and random state into the empty folder.

        Raises:
            CheckpointError: the folder is missing or not empty, or cannot be written.
        """
        if not folder.is_dir() or any(folder.iterdir()):
            raise CheckpointError(f"checkpoint folder {folder} must exist and be empty")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "version": self.version,
            "num_skipped": self.num_skipped,
        }
        partial = folder / f".{_FILE}"
        try:
            torch.save(state, partial)
            partial.rename(folder / _FILE)
        except OSError as error:
            raise CheckpointError(f"cannot write a checkpoint to {folder}: {error}") from error

    def load(self, folder: Path) -> None:
        """Read what `save` wrote. Raises CheckpointError: nothing there, or of another model."""
        path = folder / _FILE
        if not path.is_file():
            raise CheckpointError(f"no complete checkpoint of the torch trainer in {folder}: no {_FILE}")
        try:
            state = torch.load(path, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint in {folder} does not fit this trainer: {error}") from error
        torch.set_rng_state(state["rng"])
        self.version, self.num_skipped = state["version"], state["num_skipped"]

    def close(self) -> None:
        """Nothing to give up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRows:
    """Rows beside each other, padded on the right."""

    indices: tuple[int, ...]
    """Which rows of the batch."""
    ids: Tensor
    """[num_rows, longest]"""
    attention: Tensor
    """[num_rows, longest] 1 on tokens, 0 on padding."""
    rows: Tensor
    """[num_selected] row of each prediction that is wanted, from 0."""
    columns: Tensor
    """[num_selected] input that predicts it."""
    targets: Tensor
    """[num_selected]"""
    values: Tensor
    """[len(VALUES), num_selected]"""
    teacher_top: TopTensors | None


def padded(rows: Sequence[Row], max_tokens: int) -> list[PaddedRows]:
    """Rows of like length together, at most `max_tokens` tokens with the padding.

    Raises:
        ConfigError: a row alone is longer than that.
    """
    order = sorted((i for i in range(len(rows)) if len(rows[i].inputs)), key=lambda i: -len(rows[i].inputs))
    parts: list[list[int]] = []
    for index in order:
        size = len(rows[index].inputs)
        if size > max_tokens:
            raise ConfigError(
                f"{rows[index].id} needs {size} tokens in one forward pass, but --max-tokens-per-gpu allows "
                f"{max_tokens}: raise it, or limit the episodes' length"
            )
        if parts and len(rows[parts[-1][0]].inputs) * (len(parts[-1]) + 1) <= max_tokens:
            parts[-1].append(index)
        else:
            parts.append([index])
    return [_pad([rows[i] for i in part], tuple(part)) for part in parts]


def _pad(rows: Sequence[Row], indices: tuple[int, ...]) -> PaddedRows:
    ids = np.zeros((len(rows), max(len(r.inputs) for r in rows)), np.int64)
    attention = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row.inputs)] = row.inputs
        attention[number, : len(row.inputs)] = 1
    columns = [np.flatnonzero(row.mask) for row in rows]
    numbers = np.repeat(np.arange(len(rows)), [len(c) for c in columns])
    targets = [row.targets[c] for row, c in zip(rows, columns, strict=True)]
    values = [row.values[:, c] for row, c in zip(rows, columns, strict=True)]
    return PaddedRows(
        indices=indices,
        ids=torch.from_numpy(ids),
        attention=torch.from_numpy(attention),
        rows=torch.from_numpy(numbers),
        columns=torch.from_numpy(np.concatenate(columns)),
        targets=torch.from_numpy(np.concatenate(targets)),
        values=torch.from_numpy(np.concatenate(values, axis=1)),
        teacher_top=top_tensors(rows),
    )


def _load(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        Path(folder).expanduser(), dtype=torch.float32, attn_implementation="sdpa"
    )


def _frozen_models(config: MegatronConfig, vocab_size: int) -> dict[FrozenField, _Frozen]:
    known: dict[FrozenField, tuple[str, str | None]] = {
        "reference_logprobs": ("--ref-load", config.ref_load),
        "teacher_logprobs": ("--opd-teacher-load", config.opd_teacher_load),
        "teacher_top": ("--opd-teacher-load", config.opd_teacher_load),
    }
    found: dict[FrozenField, _Frozen] = {}
    for field, (flag, folder) in known.items():
        if folder is None or field not in config.loss.sample_fields:
            continue
        if not same_tokenizer(config.hf_checkpoint, folder):
            raise ConfigError(f"{flag} {folder}: its tokenizer is not that of --hf-checkpoint")
        found[field] = _Frozen(_load(folder).requires_grad_(False).eval(), config)
    if "teacher_top" in found:
        theirs = found["teacher_top"].model.config.vocab_size
        check_top_k(config.loss.opd_top_k, vocab_size=vocab_size, teacher_vocab_size=theirs)
    return found


@dataclass(frozen=True, slots=True)
class _Frozen:
    model: Any
    config: MegatronConfig

    def logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]] | None = None,
    ) -> list[NDArray[np.float32]]:
        return _logprobs(self.model, self.config, rows, temperature, masks)

    @torch.no_grad()
    def top_logprobs(
        self,
        rows: Sequence[NDArray[np.int32]],
        k: int,
        *,
        temperature: float,
        masks: Sequence[NDArray[np.bool_]],
        vocab_size: int,
    ) -> list[TopTokens]:
        ids = [np.zeros((int(mask.sum()), k), np.int32) for mask in masks]
        logprobs = [np.zeros((len(x), k + 1), np.float32) for x in ids]
        for part in padded(rows_of_tokens(rows, masks), self.config.max_tokens_per_gpu):
            logits = _selected_logits(self.model, part) / temperature
            top = logits[:, :vocab_size].topk(k).indices
            values = top_log_probs(logits, top)
            for number, index in enumerate(part.indices):
                ids[index][:] = top[part.rows == number].int().numpy()
                logprobs[index][:] = values[part.rows == number].numpy()
        return [TopTokens(ids=i, logprobs=x) for i, x in zip(ids, logprobs, strict=True)]


@torch.no_grad()
def _logprobs(
    model: Any,
    config: MegatronConfig,
    rows: Sequence[NDArray[np.int32]],
    temperature: float,
    masks: Sequence[NDArray[np.bool_]] | None,
) -> list[NDArray[np.float32]]:
    found = [np.full(len(row), np.nan, np.float32) for row in rows]
    for part in padded(rows_of_tokens(rows, masks), config.max_tokens_per_gpu):
        values, _ = log_probs_and_entropy(_selected_logits(model, part) / temperature, part.targets)
        places = zip(part.rows.tolist(), part.columns.tolist(), values.tolist(), strict=True)
        for row, column, value in places:
            found[part.indices[row]][column + 1] = value
    return found


def _selected_logits(model: Any, part: PaddedRows) -> Tensor:
    """[num_selected, vocabulary], float32."""
    kept, place = torch.unique(part.columns, return_inverse=True)
    logits = model(
        input_ids=part.ids, attention_mask=part.attention, use_cache=False, logits_to_keep=kept
    ).logits
    return cast(Tensor, logits)[part.rows, place].float()


def _exported_names(model: Any, folder: str) -> list[str]:
    """Names of the checkpoint, which an engine knows. Raises ConfigError: the live model has others."""
    known: set[str] = set()
    for file in Path(folder).expanduser().glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            known |= set(tensors.keys())
    state = model.state_dict()
    missing = sorted(known - set(state))
    if missing:
        raise ConfigError(
            f"--hf-checkpoint {folder}: transformers holds {missing[0]!r} under another name, so the weights "
            "cannot be sent to an engine; use --trainer megatron"
        )
    return [name for name in state if name in known]
