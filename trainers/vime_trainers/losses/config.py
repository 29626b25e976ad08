"""What the loss of an update is made of. No torch: the command line builds it too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vime_agents.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The per-token loss `f`; a batch's loss is `sum of weights * f`.

    Each batch is used for exactly one optimizer step.
    """

    policy_loss: Literal["ppo", "reinforce"] = "ppo"
    """With `old_logprobs="current"` both have the same gradient: the ratio is 1."""
    old_logprobs: Literal["current", "rollout"] = "current"
    """What the ratio is taken against. `current`: the trainer's own log-probs, detached, so the ratio is 1
    and a mismatch with the engine is left to `tis_clip`. `rollout`: the engine's log-probs ("bypass"), so
    the ratio itself carries staleness and mismatch, and PPO's clip bounds it."""
    eps_clip: float = 0.2
    """The ratio is clipped below at 1 - eps_clip."""
    eps_clip_high: float = 0.2
    """The ratio is clipped above at 1 + eps_clip_high (0.28 in DAPO's clip-higher)."""
    dual_clip: float | None = None
    """Upper bound of the loss at negative advantages, in units of |advantage| (> 1, e.g. 3); None: off."""
    tis_clip: float | None = None
    """Truncated importance sampling: each token's loss is multiplied by min(exp(l_old - l_rollout),
    tis_clip), detached; None: off."""
    entropy_coef: float = 0.0
    """The loss gets -entropy_coef * entropy (nats, of the full distribution at the batch's temperature)."""
    kl_coef: float = 0.0
    """The loss gets kl_coef * KL estimate of the trainer's policy against the rollout policy."""
    kl_estimator: Literal["k2", "k3"] = "k2"
    """k2's gradient is that of KL(policy || rollout); k3's that of KL(rollout || policy)."""

    def __post_init__(self) -> None:
        checks = {
            "policy_loss": self.policy_loss in ("ppo", "reinforce"),
            "old_logprobs": self.old_logprobs in ("current", "rollout"),
            "eps_clip": 0 <= self.eps_clip < 1,
            "eps_clip_high": 0 <= self.eps_clip_high < math.inf,
            "dual_clip": self.dual_clip is None or self.dual_clip > 1,
            "tis_clip": self.tis_clip is None or self.tis_clip > 0,
            "entropy_coef": math.isfinite(self.entropy_coef),
            "kl_coef": 0 <= self.kl_coef < math.inf,
            "kl_estimator": self.kl_estimator in ("k2", "k3"),
        }
        for name, fine in checks.items():
            if not fine:
                raise ConfigError(f"loss.{name} = {getattr(self, name)!r} is out of range; see LossConfig")
        if self.tis_clip is not None and self.old_logprobs == "rollout":
            raise ConfigError(
                f"loss.tis_clip = {self.tis_clip} with loss.old_logprobs = 'rollout' corrects twice for the "
                "same mismatch: the ratio is already taken against the rollout log-probs. Unset tis_clip, or "
                "set old_logprobs to 'current'"
            )
