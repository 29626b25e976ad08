"""Environments that several agents act in; PettingZoo envs by their `aec()` and `parallel()` faces."""

from vime_agents.multi_agent.env import MultiAgentEnv, Next
from vime_agents.multi_agent.game import Game

__all__ = ["Game", "MultiAgentEnv", "Next"]
