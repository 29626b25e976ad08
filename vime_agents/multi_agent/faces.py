"""A MultiAgentEnv as PettingZoo's two kinds of env. Importing this needs PettingZoo."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from vime_agents.env import Observation
from vime_agents.errors import ContractError, MissingDependencyError
from vime_agents.multi_agent.env import Action, MultiAgentEnv

try:
    from pettingzoo import AECEnv, ParallelEnv
except ImportError as error:
    raise MissingDependencyError("pettingzoo", "games", "the PettingZoo face of an env") from error


class ParallelFace(ParallelEnv[str, Observation, Action]):
    """Everybody steps at once. In a game of turns, actions of agents whose turn it is not are ignored.

    An agent whose turn it is not is shown nothing and has `infos[agent]["acting"]` False: there is no stale
    observation to act on.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        self.env = env
        self.metadata = {**env.metadata, "name": type(env).__name__}
        self.render_mode = env.render_mode
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []
        self.observation_spaces, self.action_spaces = env.observation_spaces, env.action_spaces

    def observation_space(self, agent: str) -> Any:
        """The same object at each call."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """The same object at each call."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """(observations, infos) of everybody."""
        result = self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        return result

    def step(self, actions: Mapping[str, Action]) -> Any:
        """The five dictionaries, of everybody who was live. Raises ContractError: somebody's is missing."""
        missing = [agent for agent in self.env.acting if agent not in actions]
        if missing:
            raise ContractError(f"it is the turn of {missing}, who have no action")
        result = self.env.step({agent: actions[agent] for agent in self.env.acting})
        self.agents = list(self.env.agents)
        return result

    def render(self) -> str:
        """Every agent's conversation."""
        return self.env.render()

    def close(self) -> None:
        """Free the env."""
        self.env.close()


class AecFace(AECEnv[str, Observation, Action | None]):
    """Agents step one after another; those who act at the same time in order, none seeing the others."""

    def __init__(self, env: MultiAgentEnv) -> None:
        super().__init__()
        self.env = env
        self.metadata = {**env.metadata, "name": type(env).__name__, "is_parallelizable": False}
        self.render_mode = env.render_mode
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []
        self.observation_spaces, self.action_spaces = env.observation_spaces, env.action_spaces
        self._seen: dict[str, Observation] = {}
        self._actions: dict[str, Action] = {}

    def observation_space(self, agent: str) -> Any:
        """The same object at each call."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """The same object at each call."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode."""
        self._seen, infos = self.env.reset(seed=seed, options=options)
        self._take_agents(list(self._seen), infos)
        self.agent_selection = self.env.acting[0]

    def observe(self, agent: str) -> Observation:
        """What is new to an agent since its last action, if it is its turn, or its end."""
        return copy.deepcopy(self._seen[agent])

    def step(self, action: Action | None) -> None:
        """The selected agent's action; None from one who is out."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if action is None:
            raise ContractError(f"{agent} is in play: its action cannot be None")
        self._cumulative_rewards[agent] = 0.0
        self._actions[agent] = action
        waiting = [a for a in self.env.acting if a not in self._actions]
        if waiting:
            self._clear_rewards()
            self._seen[agent] = {"messages": ()}
            self.agent_selection = waiting[0]
            return
        actions, self._actions = self._actions, {}
        self._seen, self.rewards, self.terminations, self.truncations, self.infos = self.env.step(actions)
        self._accumulate_rewards()
        if self.env.acting:
            self.agent_selection = self.env.acting[0]
        self._deads_step_first()

    def render(self) -> str:
        """Every agent's conversation."""
        return self.env.render()

    def close(self) -> None:
        """Free the env."""
        self.env.close()

    def _take_agents(self, agents: list[str], infos: Any) -> None:
        self.agents, self._actions, self.infos = agents, {}, infos
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
