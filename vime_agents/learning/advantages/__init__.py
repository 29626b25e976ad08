"""Rewards -> advantages. Pure functions of numpy arrays; each can be used alone.

- `groups`: rewards of the episodes of one group -> one advantage for each
- `returns`: rewards of one trajectory's tokens or turns -> returns, and GAE
- `whitening`: advantages of all trainable tokens -> mean 0, variance 1
- `overlong`: a reward's part for the length
"""

from vime_agents.learning.advantages.groups import (
    ESTIMATORS,
    GRPO_EPSILON,
    WHITENED,
    Advantages,
    Estimator,
    dr_grpo,
    get_estimator,
    grpo,
    maxrl,
    no_baseline,
    rloo,
)
from vime_agents.learning.advantages.overlong import overlong_penalty
from vime_agents.learning.advantages.returns import discounted_returns, gae, token_rewards
from vime_agents.learning.advantages.whitening import whiten

__all__ = [
    "ESTIMATORS",
    "GRPO_EPSILON",
    "WHITENED",
    "Advantages",
    "Estimator",
    "discounted_returns",
    "dr_grpo",
    "gae",
    "get_estimator",
    "grpo",
    "maxrl",
    "no_baseline",
    "overlong_penalty",
    "rloo",
    "token_rewards",
    "whiten",
]
