"""What the trainer must compute, by other means: transformers models and plain torch, one row at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from vime_agents.trainer import Batch, TrainingSample

VOCAB_SIZE = 131
"""Odd, so that tensor parallelism has to pad it."""
TEMPERATURE = 0.8
TIS_CLIP, ENTROPY_COEF, KL_COEF = 1.05, 0.02, 0.1
LR, CLIP_GRAD, ADAM_EPS, WEIGHT_DECAY = 1e-2, 0.05, 1e-3, 0.1
SMALL_LR, NUM_SMALL_STEPS = 5e-4, 24
"""In bfloat16, numbers from 0.5 to 1 are 0.0039 apart."""

ROW_LOSSES = {
    "gspo": {"pg_loss_type": "gspo", "old_logprobs": "rollout", "eps_clip": 0.3, "eps_clip_high": 0.4},
    "rejection": {
        "tis_clip": 0.2,
        "tis_clip_low": 0.01,
        "tis_level": "sequence",
        "rs_lower_bound": 0.25,
        "rs_upper_bound": 1.6,
    },
    "custom": {"loss_type": "custom_loss", "custom_loss_function_path": "oracle:custom_loss"},
    "four-policies": {
        "old_logprobs": "sample",
        "kl_reference": "sample",
        "kl_coef": 0.1,
        "opd_kl_coef": 0.5,
        "tis_clip": 1.5,
    },
    "sft": {"loss_type": "sft_loss"},
}
"""Losses in which a token depends on its whole row, or which read whole logits or more of a sample."""

DISTILLATION, TOP_KS = 0.5, (8, 80)
"""The weight of a teacher; of its 131 tokens, 80 are more than a tensor-parallel rank has."""

EXPERTS = {"num_attention_heads": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 24}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_size": 72,
        "rope_parameters": LLAMA3,
    },
    "qwen2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "rope_parameters": YARN,
    },
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "head_dim": 24},
    "qwen3_moe": {
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "head_dim": 16,
        "num_experts": 8,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
    }
    | EXPERTS,
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "hidden_size": 64,
        "n_routed_experts": 16,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "num_nextn_predict_layers": 0,
        "rope_parameters": YARN,
    }
    | EXPERTS,
}
MODELS = {
    "llama": "LlamaConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "qwen3_moe": "Qwen3MoeConfig",
    "deepseek_v3": "DeepseekV3Config",
}


def make_model(family: str, folder: Path, *, num_layers: int = 2, **changes: Any) -> None:
    """A random model whose norms and biases are random too, so that leaving one out shows."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "intermediate_size": 96,
        "num_hidden_layers": num_layers,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6 if family == "deepseek_v3" else 1e-5,
        "tie_word_embeddings": family in ("llama", "qwen3"),
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }
    config = getattr(transformers, MODELS[family])(**settings | SHAPES[family] | changes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not name.endswith("lm_head.weight") or not settings["tie_word_embeddings"]:
                tensor.add_(0.1 * torch.randn_like(tensor))
    model.save_pretrained(folder)


def checkpoint_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors named as in a live transformers model, which stacks experts -> as in its checkpoint."""
    found = {}
    for name, tensor in tensors.items():
        prefix, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj"):
            found[name] = tensor
            continue
        for index, expert in enumerate(tensor):
            if last == "down_proj":
                found[f"{prefix}.{index}.down_proj.weight"] = expert
            else:
                gate, up = expert.chunk(2)
                found[f"{prefix}.{index}.gate_proj.weight"] = gate
                found[f"{prefix}.{index}.up_proj.weight"] = up
    return found


def load(folder: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def make_batch(num_samples: int) -> Batch:
    """Ragged rows with gaps in their masks; the weights are those of seq-mean-token-mean."""
    rng = np.random.default_rng(1)
    samples = []
    for index in range(num_samples):
        size = int(rng.integers(3, 40))
        mask = rng.random(size) < 0.5
        mask[0], mask[size // 2] = False, True
        where = lambda values: np.where(mask, values, 0).astype(np.float32)  # noqa: B023, E731
        samples.append(
            TrainingSample(
                id=f"e{index}/agent/0",
                episode_id=f"e{index}",
                group_id="g",
                agent="agent",
                token_ids=rng.integers(0, VOCAB_SIZE, size).astype(np.int32),
                loss_mask=mask,
                rollout_logprobs=np.where(mask, rng.uniform(-6, -3, size), np.nan).astype(np.float32),
                advantages=where(rng.normal(size=size)),
                weights=where(np.full(size, 1 / (num_samples * mask.sum()))),
                weight_versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )
    return Batch(samples=tuple(samples), temperature=TEMPERATURE)


def row_batch(name: str) -> Batch:
    """The batch of one of ROW_LOSSES, with what its loss reads of the samples."""
    batch = make_batch(9)
    rng = np.random.default_rng(2)
    samples = []
    for sample in batch.samples:
        near = {
            f"{policy}_logprobs": rng.uniform(low, low + 1, len(sample)).astype(np.float32)
            for policy, low in (("old", -5.5), ("reference", -7.0), ("teacher", -4.0))
        }
        others = {"rollout_logprobs": np.full(len(sample), np.nan, np.float32)} if name == "sft" else {}
        samples.append(replace(sample, **(near if name == "four-policies" else others)))
    return replace(batch, samples=tuple(samples))


def log_softmax(model: torch.nn.Module, ids: np.ndarray, temperature: float) -> torch.Tensor:
    """[num_tokens - 1, vocabulary] log-probs of what follows each token but the last."""
    logits = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits / temperature, -1)


def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """On-policy policy gradient with truncated importance sampling, entropy bonus and k2 penalty."""
    total = torch.zeros(())
    for sample in batch.samples:
        table = log_softmax(model, sample.token_ids, batch.temperature)
        for t in np.flatnonzero(sample.loss_mask):
            log_probs = table[t - 1]
            chosen = log_probs[int(sample.token_ids[t])]
            gap = chosen - float(sample.rollout_logprobs[t])
            weight = min(gap.exp().item(), TIS_CLIP)
            policy = -weight * float(sample.advantages[t]) * (chosen - chosen.detach()).exp()
            entropy = -(log_probs.exp() * log_probs).sum()
            term = policy - ENTROPY_COEF * entropy + KL_COEF * gap**2 / 2
            total = total + float(sample.weights[t]) * term
    return total


def custom_loss(args, batch, logits, sum_of_sample_mean):
    """A loss of a user's own: policy gradient, and a penalty on large logits."""
    log_probs, advantages = torch.cat(batch["current_log_probs"]), torch.cat(batch["advantages"])
    penalty = logits.square().mean(-1)
    loss = sum_of_sample_mean(-advantages * log_probs + 0.01 * penalty)
    return loss, {"share": sum_of_sample_mean(torch.ones_like(log_probs)), "name": loss}


def row_loss(model: torch.nn.Module, batch: Batch, name: str) -> tuple[torch.Tensor, float]:
    """Loss of one of ROW_LOSSES, and the share of tokens in rejected rows."""
    settings, total, rejected, count = ROW_LOSSES[name], torch.zeros(()), 0, 0
    for sample in batch.samples:
        places = np.flatnonzero(sample.loss_mask)
        chosen, penalty = [], []
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))
        logits = model(ids[None], use_cache=False).logits[0, :-1] / batch.temperature
        for t in places:
            chosen.append(torch.log_softmax(logits[t - 1], -1)[ids[t]])
            penalty.append(logits[t - 1].square().mean())
        log_probs = torch.stack(chosen)
        where = [
            torch.from_numpy(x[places]) for x in (sample.advantages, sample.weights, sample.rollout_logprobs)
        ]
        advantages, weights, rollout = where
        gaps = (log_probs - rollout).detach()
        unit = (log_probs - log_probs.detach()).exp()
        count += len(places)
        if name == "gspo":
            ratio = gaps.mean().exp() * unit
            low, high = 1 - settings["eps_clip"], 1 + settings["eps_clip_high"]
            terms = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        elif name == "rejection":
            inside = settings["rs_lower_bound"] <= gaps.mean().exp() <= settings["rs_upper_bound"]
            rejected += 0 if inside else len(places)
            product = gaps.sum().exp().item()
            weight = min(max(product, settings["tis_clip_low"]), settings["tis_clip"])
            terms = -weight * advantages * unit * float(inside)
        elif name == "four-policies":
            old, reference, teacher = (
                torch.from_numpy(x[places])
                for x in (sample.old_logprobs, sample.reference_logprobs, sample.teacher_logprobs)
            )
            current = log_probs.detach()
            shaped = advantages - 0.1 * (current - reference) - 0.5 * (current - teacher)
            ratio = (log_probs - old).exp()
            clipped = -torch.minimum(ratio * shaped, ratio.clamp(0.8, 1.2) * shaped)
            terms = (old - rollout).exp().clamp(max=1.5) * clipped
        elif name == "sft":
            terms = -log_probs
        else:
            terms = -advantages * log_probs + 0.01 * torch.stack(penalty)
        total = total + (weights * terms).sum()
    return total, rejected / count


def row_loss_and_norm(model: torch.nn.Module, batch: Batch, name: str) -> tuple[float, float, float]:
    """Loss, gradient norm, share of tokens in rejected rows."""
    model.zero_grad()
    value, rejected = row_loss(model, batch, name)
    value.backward()
    norms = [torch.linalg.vector_norm(p.grad) for p in model.parameters() if p.grad is not None]
    return value.item(), torch.linalg.vector_norm(torch.stack(norms)).item(), rejected


def distillation_loss(
    model: torch.nn.Module, teacher: torch.nn.Module, batch: Batch, top_k: int
) -> tuple[float, float, float]:
    """Loss, gradient norm and mean divergence of DISTILLATION: from whole float64 distributions."""
    model.zero_grad()
    total, divergences = torch.zeros(()), []
    for sample in batch.samples:
        table = log_softmax(model, sample.token_ids, batch.temperature)
        with torch.no_grad():
            known = log_softmax(teacher, sample.token_ids, batch.temperature).double().exp()
        for t in np.flatnonzero(sample.loss_mask):
            p, q = table[t - 1].double().exp(), known[t - 1]
            order = q.argsort(descending=True)
            top, rest = order[:top_k], order[top_k:]
            divergence = (p[top] * (p[top] / q[top]).log()).sum()
            divergence = divergence + p[rest].sum() * (p[rest].sum() / q[rest].sum()).log()
            divergences.append(divergence.item())
            chosen = table[t - 1][int(sample.token_ids[t])]
            term = DISTILLATION * divergence - float(sample.advantages[t]) * chosen
            # The ratio is 1: the policy's part has the gradient -A l, and the value -A.
            term = term + float(sample.advantages[t]) * (chosen.detach() - 1)
            total = total + float(sample.weights[t]) * term
    total.backward()
    norms = [torch.linalg.vector_norm(p.grad) for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(norms)).item()
    return total.item(), norm, float(np.mean(divergences))


def balance_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Mean over rows of the sum over layers of the sequence-wise balance loss of arXiv 2412.19437, 2.1.2."""
    logits: list[torch.Tensor] = []
    routers = [m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")]
    hooks = [r.register_forward_hook(lambda _module, _args, out: logits.append(out[0])) for r in routers]
    total, top_k = torch.zeros(()), model.config.num_experts_per_tok
    for sample in batch.samples:
        logits.clear()
        ids = sample.token_ids[: np.flatnonzero(sample.loss_mask)[-1]]  # what comes after is not computed
        model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
        for layer in logits:
            scores = layer.softmax(-1) if model.config.model_type == "qwen3_moe" else layer.sigmoid()
            scores = scores / scores.sum(-1, keepdim=True)
            num_tokens, num_experts = scores.shape
            chosen = torch.zeros_like(scores).scatter(1, scores.topk(top_k, dim=-1).indices, 1.0)
            load = num_experts / (top_k * num_tokens) * chosen.sum(0)
            total = total + (load * scores.mean(0)).sum()
    for hook in hooks:
        hook.remove()
    return total / len(batch.samples)


def gradients(
    model: torch.nn.Module, batch: Batch, balance: float = 0.0
) -> tuple[float, dict[str, torch.Tensor], float]:
    """Loss, gradient of each parameter, and the norm of all; `balance` weighs the experts' balance loss."""
    model.zero_grad()
    value = loss(model, batch)
    (value + balance * balance_loss(model, batch) if balance else value).backward()
    found = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in found.values()]))
    return value.item(), checkpoint_names(found), norm.item()


def train(
    model: torch.nn.Module, batch: Batch, num_updates: int, balance: float = 0.0
) -> dict[str, torch.Tensor]:
    """AdamW with clipping; like Megatron, no weight decay on norms and biases."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, eps=ADAM_EPS, betas=(0.9, 0.999))
    for _ in range(num_updates):
        gradients(model, batch, balance)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
        optimizer.step()
    return checkpoint_names({name: p.detach().clone() for name, p in model.named_parameters()})
