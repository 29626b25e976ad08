"""A baseline for each role, for self-play: both sides of a game move, and each is measured by its own past.

SPIRAL's role-conditioned advantage estimation, arXiv:2506.24119.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vime_agents.errors import CheckpointError, ConfigError
from vime_agents.learning.advantages.groups import Advantages


@dataclass(slots=True)
class RoleBaseline:
    """`A = R - b`, then `b <- decay b + (1 - decay) R`, one episode after the other.

    The baseline is read before it is updated: an episode's own reward is no part of what it is compared with.
    """

    decay: float
    value: float = 0.0
    """b"""
    compares_nothing = True

    def __call__(self, rewards: Sequence[float]) -> Advantages:
        """Advantages [num_episodes] in the order given; moves the baseline."""
        advantages = np.zeros(len(rewards))
        for place, reward in enumerate(rewards):
            advantages[place] = reward - self.value
            self.value = self.decay * self.value + (1 - self.decay) * reward
        return advantages


class RoleBaselines:
    """The baselines of all roles of a run. They are part of its state: save them with its checkpoints."""

    def __init__(self, decay: float = 0.95) -> None:
        """Args: decay: of each baseline, in [0, 1).

        Raises:
            ConfigError: another decay.
        """
        if not 0 <= decay < 1:
            raise ConfigError(f"--rae-decay {decay}: must be at least 0 and below 1")
        self.decay = decay
        self._of: dict[str, RoleBaseline] = {}

    def of(self, role: str) -> RoleBaseline:
        """The role's own baseline; 0 at first."""
        return self._of.setdefault(role, RoleBaseline(self.decay))

    def state_dict(self) -> dict[str, float]:
        """Role -> baseline."""
        return {role: baseline.value for role, baseline in sorted(self._of.items())}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from what `state_dict` said.

        Raises:
            CheckpointError: a baseline that is no finite number.
        """
        for role, value in state.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise CheckpointError(
                    f"the checkpoint's baseline of role {role!r} is {value!r}, not a number"
                )
        self._of = {role: RoleBaseline(self.decay, float(value)) for role, value in state.items()}
