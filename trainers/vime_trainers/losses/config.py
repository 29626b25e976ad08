"""What the loss of an update is made of. No torch: the command line builds it too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vime_agents.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The per-token loss `f`; a batch's loss is `sum of weights * f`.

    Each call of `update` is one optimizer step. Formulas and papers: docs/losses.md.
    """

    loss_type: Literal["policy_loss", "sft_loss", "custom_loss"] = "policy_loss"
    """`sft_loss`: likelihood of the trainable tokens, for text of others; of what follows only `entropy_coef`
    has a part in it. `custom_loss`: what the function at `custom_loss_function_path` returns."""
    custom_loss_function_path: str | None = None
    """`module:function`, see `vime_trainers.losses.custom`."""
    pg_loss_type: Literal["ppo", "reinforce", "gspo", "cispo"] = "ppo"
    """With `old_logprobs="current"` all four have the same gradient: the ratio is 1."""
    old_logprobs: Literal["current", "rollout", "sample"] = "current"
    """What the ratio is taken against. `current`: the trainer's own log-probs, detached, so the ratio is 1
    and a mismatch with the engine is left to the corrections. `rollout`: the engine's log-probs ("bypass"),
    so the ratio itself carries staleness and mismatch, and PPO's clip bounds it. `sample`: the trainer's
    from before several updates with one batch ("decoupled"), which the samples carry as `old_logprobs`."""
    eps_clip: float = 0.2
    """The ratio is clipped below at 1 - eps_clip."""
    eps_clip_high: float = 0.2
    """The ratio is clipped above at 1 + eps_clip_high (0.28 in DAPO's clip-higher)."""
    eps_clip_c: float | None = None
    """Dual clip: upper bound of the loss at negative advantages, in units of |advantage| (> 1, e.g. 3); None:
    off. Of ppo and gspo."""

    tis_clip: float | None = None
    """Importance weights `rho = exp(l_old - l_rollout)` on the policy loss, at most this; None: off."""
    tis_clip_low: float = 0.0
    """Their lower bound."""
    tis_level: Literal["token", "sequence"] = "token"
    """`sequence`: the product over the row."""
    tis_mode: Literal["truncate", "mask"] = "truncate"
    """Outside the bounds: `truncate`, the bound; `mask`, 0 (IcePop; with `sequence`, Seq-MIS)."""
    rs_lower_bound: float | None = None
    """Rows whose geometric mean of `rho` is below this leave the loss; None: off."""
    rs_upper_bound: float | None = None
    """Likewise above this."""
    rs_veto_threshold: float | None = None
    """Rows with a single `rho` below this leave the loss; None: off."""

    entropy_coef: float = 0.0
    """The loss gets -entropy_coef * entropy (nats, of the full distribution at the batch's temperature)."""
    kl_loss_coef: float = 0.0
    """The loss gets kl_loss_coef * KL estimate of the trainer's policy against `kl_reference`."""
    kl_loss_type: Literal["k1", "k2", "k3", "k3+"] = "k2"
    """k2's and k3+'s gradients are that of KL(policy || reference); k3's that of KL(reference || policy). k1
    needs `use_unbiased_kl`: its own expected gradient is 0."""
    use_unbiased_kl: bool = False
    """Multiply the estimate, k1 or k3, by the differentiable probability ratio."""
    kl_coef: float = 0.0
    """The advantage of each token gets -kl_coef * (l - l_reference), detached: KL in the reward."""
    kl_reference: Literal["rollout", "sample"] = "rollout"
    """`rollout`: the policy that sampled; `sample`: `reference_logprobs` of the samples."""
    opd_kl_coef: float = 0.0
    """On-policy distillation: the advantage of each token gets -opd_kl_coef * (l - l_teacher), with
    `teacher_logprobs` of the samples."""
    opd_top_k: int = 0
    """Above 0: instead, the loss gets opd_kl_coef * the reverse KL divergence over the whole of each
    distribution, of which the teacher's likeliest opd_top_k tokens count one by one and all others together,
    with `teacher_top` of the samples."""

    def __post_init__(self) -> None:
        checks = {
            "loss_type": self.loss_type in ("policy_loss", "sft_loss", "custom_loss"),
            "pg_loss_type": self.pg_loss_type in ("ppo", "reinforce", "gspo", "cispo"),
            "old_logprobs": self.old_logprobs in ("current", "rollout", "sample"),
            "eps_clip": 0 <= self.eps_clip <= 1,
            "eps_clip_high": 0 <= self.eps_clip_high < math.inf,
            "eps_clip_c": self.eps_clip_c is None or self.eps_clip_c > 1,
            "tis_clip": self.tis_clip is None or self.tis_clip > 0,
            "tis_clip_low": 0 <= self.tis_clip_low <= (self.tis_clip or math.inf),
            "tis_level": self.tis_level in ("token", "sequence"),
            "tis_mode": self.tis_mode in ("truncate", "mask"),
            "rs_lower_bound": 0 < _or(self.rs_lower_bound, 1) <= 1,
            "rs_upper_bound": 1 <= _or(self.rs_upper_bound, 1) < math.inf,
            "rs_veto_threshold": 0 < _or(self.rs_veto_threshold, 1) <= 1,
            "entropy_coef": math.isfinite(self.entropy_coef),
            "kl_loss_coef": 0 <= self.kl_loss_coef < math.inf,
            "kl_loss_type": self.kl_loss_type in ("k1", "k2", "k3", "k3+"),
            "kl_coef": 0 <= self.kl_coef < math.inf,
            "kl_reference": self.kl_reference in ("rollout", "sample"),
            "opd_kl_coef": 0 <= self.opd_kl_coef < math.inf,
            "opd_top_k": self.opd_top_k >= 0,
        }
        for name, fine in checks.items():
            if not fine:
                raise ConfigError(f"loss.{name} = {getattr(self, name)!r} is out of range; see LossConfig")
        self._check_loss_type()
        self._check_corrections()
        self._check_kl()

    def _check_loss_type(self) -> None:
        if (self.loss_type == "custom_loss") != (self.custom_loss_function_path is not None):
            raise ConfigError(
                f"loss.loss_type = {self.loss_type!r} with loss.custom_loss_function_path = "
                f"{self.custom_loss_function_path!r}: custom_loss needs one, and no other loss uses it"
            )
        if self.eps_clip_c is not None and self.pg_loss_type not in ("ppo", "gspo"):
            raise ConfigError(
                f"loss.eps_clip_c = {self.eps_clip_c} with loss.pg_loss_type = {self.pg_loss_type!r}: only "
                "ppo and gspo have a dual clip"
            )
        unused = {
            "tis_clip": self.tis_clip,
            "rs_lower_bound": self.rs_lower_bound,
            "rs_upper_bound": self.rs_upper_bound,
            "rs_veto_threshold": self.rs_veto_threshold,
            "kl_loss_coef": self.kl_loss_coef,
            "kl_coef": self.kl_coef,
            "opd_kl_coef": self.opd_kl_coef,
        }
        if self.loss_type == "custom_loss":
            unused["entropy_coef"] = self.entropy_coef
        for name, value in unused.items():
            if self.loss_type != "policy_loss" and value:
                raise ConfigError(f"loss.{name} = {value} has no part in loss.loss_type = {self.loss_type!r}")

    def _check_corrections(self) -> None:
        for name in ("tis_clip_low", "tis_level", "tis_mode"):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if self.tis_clip is None and value != default:
                raise ConfigError(f"loss.{name} = {value!r} with loss.tis_clip = None has no effect: set it")
        if self.tis_clip is not None and self.old_logprobs == "rollout":
            raise ConfigError(
                f"loss.tis_clip = {self.tis_clip} with loss.old_logprobs = 'rollout' corrects twice for the "
                "same mismatch: the ratio is already taken against the rollout log-probs. Unset tis_clip, or "
                "set old_logprobs to 'current'"
            )

    def _check_kl(self) -> None:
        if self.opd_top_k and not self.opd_kl_coef:
            raise ConfigError(
                f"loss.opd_top_k = {self.opd_top_k} with loss.opd_kl_coef = 0: nothing would be distilled; "
                "set the weight opd_kl_coef above 0, or opd_top_k to 0"
            )
        if self.kl_coef and self.kl_loss_coef:
            raise ConfigError(
                f"loss.kl_coef = {self.kl_coef} and loss.kl_loss_coef = {self.kl_loss_coef} penalise the "
                "same divergence twice, in the reward and in the loss: set one of them to 0"
            )
        if self.kl_loss_coef and self.kl_loss_type == "k1" and not self.use_unbiased_kl:
            raise ConfigError(
                "loss.kl_loss_type = 'k1': the expected gradient of k1 in the loss is zero, the reference "
                "drops out of it. Use 'k2' or 'k3+', or k1 with use_unbiased_kl, or put k1 into the reward "
                "with kl_coef"
            )
        if self.use_unbiased_kl and not self.kl_loss_coef:
            raise ConfigError("loss.use_unbiased_kl with loss.kl_loss_coef = 0 has no effect: set the weight")
        if self.use_unbiased_kl and self.kl_loss_type not in ("k1", "k3"):
            raise ConfigError(
                f"loss.use_unbiased_kl with loss.kl_loss_type = {self.kl_loss_type!r}: the weighted estimate "
                "has the right gradient with 'k1' and 'k3' alone"
            )

    @property
    def rejects(self) -> bool:
        """Whether rows can be rejected."""
        return (self.rs_lower_bound, self.rs_upper_bound, self.rs_veto_threshold) != (None, None, None)

    @property
    def needs_rows(self) -> bool:
        """Whether a token's loss depends on the other tokens of its row."""
        weighs_rows = self.tis_clip is not None and self.tis_level == "sequence"
        gspo = self.loss_type == "policy_loss" and self.pg_loss_type == "gspo"
        return gspo or weighs_rows or self.rejects

    @property
    def sample_fields(self) -> tuple[str, ...]:
        """Optional fields of `TrainingSample` that this loss reads."""
        policy = self.loss_type == "policy_loss"
        needed = {
            "old_logprobs": self.old_logprobs == "sample",
            "reference_logprobs": policy
            and self.kl_reference == "sample"
            and bool(self.kl_coef or self.kl_loss_coef),
            "teacher_logprobs": policy and self.opd_kl_coef > 0 and not self.opd_top_k,
            "teacher_top": policy and self.opd_top_k > 0,
        }
        return tuple(name for name, read in needed.items() if read)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
