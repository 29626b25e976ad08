"""Rewards -> advantages. Pure functions of numpy arrays; each can be used alone.

- `groups`: rewards of the episodes of one group -> one advantage for each
- `roles`: the same for self-play, against a baseline of each role
- `returns`: rewards of one trajectory's tokens or turns -> returns, and GAE
- `whitening`: advantages of all trainable tokens -> mean 0, variance 1
- `overlong`: a reward's part for the length
"""

from vime_agents.learning.advantages.groups import (
    BATCH_SCALED,
    ESTIMATORS,
    GRPO_EPSILON,
    WHITENED,
    Advantages,
    Estimator,
    compares_nothing,
    dr_grpo,
    get_estimator,
    grpo,
    maxrl,
    no_baseline,
    opo,
    pass_at_k,
    rloo,
)
from vime_agents.learning.advantages.overlong import overlong_penalty
from vime_agents.learning.advantages.returns import discounted_returns, gae, token_rewards
from vime_agents.learning.advantages.roles import RoleBaseline, RoleBaselines
from vime_agents.learning.advantages.whitening import whiten

NAMES = (*ESTIMATORS, "rae", "ppo", "gae")
"""What `--advantage-estimator` knows by name: functions of a group's rewards, `RoleBaselines`, and a critic
(`gae`) under two names."""

__all__ = [
    "BATCH_SCALED",
    "ESTIMATORS",
    "GRPO_EPSILON",
    "NAMES",
    "WHITENED",
    "Advantages",
    "Estimator",
    "RoleBaseline",
    "RoleBaselines",
    "compares_nothing",
    "discounted_returns",
    "dr_grpo",
    "gae",
    "get_estimator",
    "grpo",
    "maxrl",
    "no_baseline",
    "opo",
    "overlong_penalty",
    "pass_at_k",
    "rloo",
    "token_rewards",
    "whiten",
]
