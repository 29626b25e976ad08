"""PettingZoo's own envs as games of ours: `ConnectFour = pettingzoo_game("classic/connect_four-v3")`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Discrete

from vime_agents.caller import caller_module
from vime_agents.errors import ConfigError, ContractError, IllegalMove, MissingDependencyError
from vime_agents.multi_agent.game import Game, one_of, whole_number

try:
    import pettingzoo
    from pettingzoo.utils.conversions import parallel_to_aec
except ImportError as error:
    raise MissingDependencyError("pettingzoo", "games", "a game of PettingZoo's") from error


class PettingZooGame(Game):
    """A game that a PettingZoo env plays. Subclasses of what `pettingzoo_game` makes may say more.

    An agent is shown nothing but its own observation: `render` may show what is others' to know.
    """

    actions: ClassVar[Sequence[str]] = ()
    """What each action is called; empty: by its number."""
    max_turns = 1000

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.env: Any = None

    @staticmethod
    def make_env() -> Any:
        """A fresh `AECEnv` or `ParallelEnv`, one for each episode."""
        raise ContractError("a subclass of what `pettingzoo_game` makes has an env; PettingZooGame has none")

    def describe(self, agent: str, observation: Any, /) -> str:
        """An agent's observation in words. Here: the numbers."""
        return as_text(observation)

    def start(self, rng: np.random.Generator) -> str | None:
        """A fresh env; whom it selects."""
        self.env = _as_aec(self.make_env())
        self.env.reset(seed=int(rng.integers(2**31)))
        return self._next()

    def view(self, me: str) -> str:
        """The observation, and the legal actions."""
        observation = self.env.observe(me)
        if isinstance(observation, dict) and "observation" in observation:
            observation = observation["observation"]
        ask = f"Legal actions: {', '.join(self.legal(me))}. Answer with one of them."
        return f"You are {me}.\n{self.describe(me, observation)}\n{ask}"

    def parse(self, me: str, text: str) -> int:
        """The last action that the reply names."""
        space = self.env.action_space(me)
        if self.actions:
            action = int(space.start) + self.actions.index(one_of(text, self.actions))
        else:
            action = whole_number(text, int(space.start), int(space.start + space.n) - 1)
        if action not in self._legal(me):
            raise IllegalMove(f"{self._name(me, action)} is not legal now")
        return action

    def move(self, me: str, action: int) -> str | None:
        """Step the env."""
        self.env.step(action)
        return self._next()

    def legal(self, me: str) -> list[str]:
        """By the env's action mask; all of them if it has none."""
        return [self._name(me, action) for action in self._legal(me)]

    def teardown(self) -> None:
        """Close the env."""
        env, self.env = self.env, None
        if env is not None:
            env.close()

    def _next(self) -> str | None:
        """Take out whoever is dead; who acts now."""
        while self.env.agents:
            agent = self.env.agent_selection
            _, reward, terminated, truncated, _ = self.env.last(observe=False)
            self.give(agent, float(reward))
            if not terminated and not truncated:
                return agent
            self.leave(agent, stop="done" if terminated else "max_turns", truncated=not terminated)
            self.env.step(None)
        return None

    def _legal(self, me: str) -> list[int]:
        space = self.env.action_space(me)
        observation, info = self.env.observe(me), self.env.infos[me]
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        mask = info.get("action_mask") if mask is None else mask
        allowed = range(int(space.n)) if mask is None else np.flatnonzero(mask)
        return [int(space.start) + int(action) for action in allowed]

    def _name(self, me: str, action: int) -> str:
        return self.actions[action - int(self.env.action_space(me).start)] if self.actions else str(action)


def pettingzoo_game(
    env: str | Callable[[], Any],
    *,
    reward_range: tuple[float, float] = (-1.0, 1.0),
    actions: Sequence[str] = (),
    name: str = "",
) -> type[PettingZooGame]:
    """A game class that plays an env of PettingZoo's.

    Args:
        env: id of an AEC env (`classic/connect_four-v3`), or a function that makes an AEC or parallel env.
        reward_range: of an agent's whole episode; a forfeit costs its lower end.
        actions: what each action is called; empty: by its number.
        name: of the class; that of the variable that it is given to, for workers and `vime-agents check`.

    Raises:
        ConfigError: agents that come up during play, an action space that is not Discrete, or a wrong number
            of names.
    """
    make_env = (lambda: pettingzoo.make("aec", env)) if isinstance(env, str) else env
    sample: Any = _as_aec(make_env())
    try:
        agents: tuple[str, ...] = tuple(getattr(sample, "possible_agents", ()))
        if not agents or not all(isinstance(agent, str) for agent in agents):
            raise ConfigError(f"{sample}: its possible_agents must be known and be texts, got {agents}")
        for agent in agents:
            space = sample.action_space(agent)
            if not isinstance(space, Discrete):
                raise ConfigError(
                    f"{sample}: {agent} acts in {space}; a reply can only name Discrete actions"
                )
            if actions and len(actions) != space.n:
                raise ConfigError(f"{sample}: {len(actions)} names for the {space.n} actions of {agent}")
    finally:
        sample.close()
    fields = {
        "__doc__": f"{sample}, of PettingZoo.",
        "__module__": caller_module(__name__),
        "make_env": staticmethod(make_env),
        "possible_agents": agents,
        "reward_range": reward_range,
        "actions": tuple(actions),
    }
    return type(name or str(sample), (PettingZooGame,), fields)


def as_text(observation: Any) -> str:
    """Numbers as rows; an array of three dimensions as one board for each index of its last."""
    if isinstance(observation, dict):
        return "\n".join(f"{key}: {as_text(value)}" for key, value in observation.items())
    array = np.asarray(observation)
    if array.dtype == bool:
        array = array.astype(int)
    if array.ndim == 3:
        planes = (f"plane {i}:\n{as_text(array[..., i])}" for i in range(array.shape[-1]))
        return "\n".join(planes)
    if array.ndim == 2:
        return "\n".join(as_text(row) for row in array)
    return " ".join(f"{number:g}" for number in array.ravel().tolist())


def _as_aec(env: Any) -> Any:
    return parallel_to_aec(env) if isinstance(env, pettingzoo.ParallelEnv) else env
