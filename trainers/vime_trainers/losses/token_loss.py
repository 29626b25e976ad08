"""The per-token loss of an update, and the sums that its metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vime_agents.errors import ContractError
from vime_trainers.losses import kl
from vime_trainers.losses.config import LossConfig
from vime_trainers.losses.corrections import (
    abs_difference,
    geometric_accept,
    icepop,
    sequence_mask,
    sequence_tis,
    token_tis,
    veto_accept,
)
from vime_trainers.losses.distillation import top_k_reverse_kl
from vime_trainers.losses.gspo import gspo_loss
from vime_trainers.losses.histogram import magnitudes
from vime_trainers.losses.policy_gradient import (
    cispo_loss,
    log_ratio,
    masked,
    ppo_clip_loss,
    reinforce_loss,
)
from vime_trainers.losses.rows import Rows
from vime_trainers.losses.supervised import sft_loss

SUMS = (
    "loss",
    "pg_loss",
    "entropy",
    "kl_k3",
    "abs_diff",
    "ratio",
    "clipped",
    "tis_clipped",
    "rejected",
    "clamped",
    "is_weight",
    "is_weight_squared",
    "kl_reference",
    "kl_teacher",
    "top_mass",
    "teacher_top_mass",
    "count",
)
"""Names of the sums of `TokenLoss.sums`, in order: sums over tokens, so that shards can be added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputs:
    """Trainable tokens and what is known of each; every tensor is [num_tokens] unless it says more."""

    log_probs: Tensor
    """Of the trainer, differentiable."""
    entropy: Tensor
    """Of the distributions that the tokens come from."""
    rollout_log_probs: Tensor
    """Of the engine; NaN where nobody sampled."""
    advantages: Tensor
    weights: Tensor
    """The share of each token in the loss."""
    rows: Rows | None = None
    """None: all of them are one row."""
    old_log_probs: Tensor | None = None
    """Of the trainer before the first of several updates with this batch."""
    reference_log_probs: Tensor | None = None
    teacher_log_probs: Tensor | None = None
    top_log_probs: Tensor | None = None
    """[num_tokens, N + 1] of the trainer, differentiable, of the teacher's N likeliest tokens and of all
    others together."""
    teacher_top_log_probs: Tensor | None = None
    """[num_tokens, N + 1] of the teacher, of the same."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of some tokens and what to report about them."""

    loss: Tensor
    """[] `sum of weights * f`, differentiable."""
    sums: Tensor
    """[len(SUMS)] float64, detached. `loss` and `pg_loss` are weighted as in the loss; the others are plain
    sums over tokens, rejected ones included."""
    max_abs_diff: Tensor
    """[] largest |l - l_rollout|, detached."""
    abs_diffs: Tensor
    """[NUM_BINS] how many |l - l_rollout| are in each bin of `losses.histogram`."""
    custom: dict[str, Tensor] = field(default_factory=dict)
    """A custom loss's own metrics, each a sum over tokens."""


def token_loss(config: LossConfig, tokens: TokenInputs) -> TokenLoss:
    """`sum of weights * f` over trainable tokens; there may be none."""
    mask = torch.ones_like(tokens.log_probs, dtype=torch.bool)
    effects = _Effects(tokens.log_probs)
    if config.loss_type == "sft_loss":
        policy = sft_loss(tokens.log_probs, mask)
    else:
        policy = _policy_loss(config, tokens, mask, effects)
    loss = policy
    if config.entropy_coef:
        loss = loss - config.entropy_coef * tokens.entropy
    if config.kl_loss_coef:
        loss = loss + config.kl_loss_coef * _kl_loss(config, tokens, mask)
    if config.opd_top_k:
        loss = loss + config.opd_kl_coef * _distillation(tokens, mask, effects)
    accepted = _accepted(config, tokens, mask)
    if accepted is not None:
        effects.rejected = ~accepted
        policy, loss = (torch.where(accepted, x, x.new_zeros(())) for x in (policy, loss))
    return report(tokens, (tokens.weights * loss).sum(), (tokens.weights * policy).sum(), effects)


class _Effects:
    """What clipping and corrections did to each token; [num_tokens] each, detached."""

    def __init__(self, like: Tensor) -> None:
        self.ratio = torch.ones_like(like.detach())
        self.is_weight = torch.ones_like(self.ratio)
        self.kl_teacher: Tensor | None = None
        self.clipped, self.tis_clipped, self.rejected, self.clamped = (
            torch.zeros_like(like, dtype=torch.bool) for _ in range(4)
        )


def report(
    tokens: TokenInputs,
    loss: Tensor,
    pg_loss: Tensor | None = None,
    effects: _Effects | None = None,
    custom: dict[str, Tensor] | None = None,
) -> TokenLoss:
    """The loss [] with what its metrics are made of."""
    effects = effects or _Effects(tokens.log_probs)
    current, rollout = tokens.log_probs.detach(), tokens.rollout_log_probs
    sampled = ~rollout.isnan()
    difference = abs_difference(current, rollout, sampled)
    sums = (
        loss.detach(),
        (loss if pg_loss is None else pg_loss).detach(),
        tokens.entropy.detach().sum(),
        # The tokens are samples of the rollout policy, so its log-probs come first.
        kl.k3(rollout, current, sampled).sum(),
        difference.sum(),
        effects.ratio.sum(),
        effects.clipped.sum(),
        effects.tis_clipped.sum(),
        effects.rejected.sum(),
        effects.clamped.sum(),
        effects.is_weight.sum(),
        effects.is_weight.double().square().sum(),
        _divergence(current, tokens.reference_log_probs),
        _divergence(current, tokens.teacher_log_probs)
        if effects.kl_teacher is None
        else effects.kl_teacher.sum(),
        _top_mass(current, tokens.top_log_probs),
        _top_mass(current, tokens.teacher_top_log_probs),
        torch.tensor(difference.numel(), device=difference.device),
    )
    largest = difference.max() if difference.numel() else difference.new_zeros(())
    counts = magnitudes(difference[sampled])
    return TokenLoss(loss, torch.stack([s.double() for s in sums]), largest, counts, custom or {})


def _divergence(log_probs: Tensor, other: Tensor | None) -> Tensor:
    """[] the sum of `l - l_other` where both are known: in expectation that of KL(policy || other)."""
    if other is None:
        return log_probs.new_zeros(())
    known = ~other.isnan()
    return (masked(log_probs, known) - masked(other, known)).sum()


def _top_mass(log_probs: Tensor, top: Tensor | None) -> Tensor:
    """[] the sum over tokens of the probability of the teacher's likeliest."""
    return log_probs.new_zeros(()) if top is None else top.detach()[:, :-1].exp().sum()


def old_log_probs(config: LossConfig, tokens: TokenInputs) -> Tensor:
    """What the ratio is taken against, detached."""
    if config.old_logprobs == "rollout":
        return tokens.rollout_log_probs
    if config.old_logprobs == "sample":
        return _given(tokens.old_log_probs, "old_log_probs")
    return tokens.log_probs.detach()


def _policy_loss(config: LossConfig, tokens: TokenInputs, mask: Tensor, effects: _Effects) -> Tensor:
    current, old = tokens.log_probs, old_log_probs(config, tokens)
    advantages = tokens.advantages
    if config.kl_coef:
        advantages = kl.penalised(advantages, current, _reference(config, tokens), mask, config.kl_coef)
    if config.opd_kl_coef and not config.opd_top_k:
        teacher = _given(tokens.teacher_log_probs, "teacher_log_probs")
        advantages = kl.penalised(advantages, current, teacher, mask, config.opd_kl_coef)
    bounds = {"eps_clip": config.eps_clip, "eps_clip_high": config.eps_clip_high}
    if config.pg_loss_type == "reinforce":
        policy = reinforce_loss(current, advantages, mask)
    else:
        if config.pg_loss_type == "cispo":
            policy, ratio, clipped = cispo_loss(current, old, advantages, mask, **bounds)
        elif config.pg_loss_type == "gspo":
            rows = _rows(tokens)
            policy, ratio, clipped = gspo_loss(
                current, old, advantages, mask, rows, dual_clip=config.eps_clip_c, **bounds
            )
        else:
            policy, ratio, clipped = ppo_clip_loss(
                current, old, advantages, mask, dual_clip=config.eps_clip_c, **bounds
            )
        effects.ratio, effects.clipped = ratio.detach(), clipped
        effects.clamped = log_ratio(current.detach(), old, mask)[1]
    weights, effects.tis_clipped = _importance_weights(config, tokens, mask)
    effects.clamped |= log_ratio(_trainer_side(config, tokens), tokens.rollout_log_probs, mask)[1]
    effects.is_weight = weights
    return policy if config.tis_clip is None else policy * weights


def _importance_weights(config: LossConfig, tokens: TokenInputs, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, and where bounds changed them; without correction those that it would start from."""
    pair = (_trainer_side(config, tokens), tokens.rollout_log_probs, mask)
    high, low = config.tis_clip, config.tis_clip_low
    if high is None:
        return token_tis(*pair, clip=float("inf"))
    if config.tis_level == "sequence":
        rows = _rows(tokens)
        if config.tis_mode == "mask":
            return sequence_mask(*pair, rows, low=low, high=high)
        return sequence_tis(*pair, rows, clip=high, clip_low=low)
    if config.tis_mode == "mask":
        return icepop(*pair, low=low, high=high)
    return token_tis(*pair, clip=high, clip_low=low)


def _accepted(config: LossConfig, tokens: TokenInputs, mask: Tensor) -> Tensor | None:
    """Which tokens' rows stay in the loss; None: all."""
    if not config.rejects:
        return None
    pair = (_trainer_side(config, tokens), tokens.rollout_log_probs, mask)
    rows, accepted = _rows(tokens), mask
    low, high = config.rs_lower_bound, config.rs_upper_bound
    if (low, high) != (None, None):
        inside = geometric_accept(
            *pair, rows, low=0.0 if low is None else low, high=float("inf") if high is None else high
        )
        accepted = accepted & inside
    if config.rs_veto_threshold is not None:
        accepted = accepted & veto_accept(*pair, rows, low=config.rs_veto_threshold)
    return accepted


def _kl_loss(config: LossConfig, tokens: TokenInputs, mask: Tensor) -> Tensor:
    estimator, reference = kl.ESTIMATORS[config.kl_loss_type], _reference(config, tokens)
    if config.use_unbiased_kl:
        old = old_log_probs(config, tokens)
        return kl.ratio_weighted(estimator, tokens.log_probs, old, reference, mask)
    return estimator(tokens.log_probs, reference, mask)


def _distillation(tokens: TokenInputs, mask: Tensor, effects: _Effects) -> Tensor:
    if not mask.numel():
        return tokens.log_probs  # a context-parallel rank without a trainable token
    current = _given(tokens.top_log_probs, "top_log_probs")
    teacher = _given(tokens.teacher_top_log_probs, "teacher_top_log_probs")
    divergence = top_k_reverse_kl(current, teacher, mask)
    effects.kl_teacher = divergence.detach()
    return divergence


def _trainer_side(config: LossConfig, tokens: TokenInputs) -> Tensor:
    """The trainer's log-probs that are compared with the engine's."""
    return old_log_probs(config, tokens) if config.old_logprobs == "sample" else tokens.log_probs.detach()


def _reference(config: LossConfig, tokens: TokenInputs) -> Tensor:
    if config.kl_reference == "rollout":
        return tokens.rollout_log_probs
    return _given(tokens.reference_log_probs, "reference_log_probs")


def _rows(tokens: TokenInputs) -> Rows:
    return tokens.rows or Rows.single(tokens.log_probs)


def _given(values: Tensor | None, name: str) -> Tensor:
    if values is None:
        raise ContractError(f"this loss reads {name}, which the tokens do not have")
    return values
