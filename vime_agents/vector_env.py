"""Several AgentEnvs stepped as one: `gymnasium.make_vec("vime_agents/Calculator-v0", num_envs=8)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from vime_agents import registry
from vime_agents.env import AgentEnv, Info, Observation
from vime_agents.errors import ConfigError
from vime_agents.messages import Message
from vime_agents.threads import run_on_background_loop, run_sync


class AgentVectorEnv(SyncVectorEnv):
    """What Gymnasium's `SyncVectorEnv` gives of AgentEnvs, except that envs that wait do so at the same time.

    Envs with coroutines of their own (tools, a sandbox) are stepped together on the background loop, so that
    a step takes as long as its slowest env; envs with plain hooks one after the other in the caller's thread.

    Where an env fails, `reset` and `step` raise its error; others may have made their step by then, and none
    is still at it. `reset` all of them before the next `step`.
    """

    def __init__(
        self,
        envs: Sequence[AgentEnv],
        *,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        """`envs`: this one's from now on. `max_episode_steps`: truncate after so many, as TimeLimit does.

        Raises:
            ConfigError: there are none, or one is no AgentEnv; Gymnasium's own vector envs take any.
        """
        if not envs or not all(isinstance(env, AgentEnv) for env in envs):
            raise ConfigError(f"envs: must be one or more AgentEnvs, got {list(envs)!r:.200}")
        self._agent_envs = tuple(envs)
        made: list[Callable[[], Any]] = [partial(_given, env) for env in envs]
        super().__init__(made, copy=False, autoreset_mode=autoreset_mode)
        self._waits = any(type(env)._needs_loop for env in envs)
        self._max_episode_steps = max_episode_steps
        self._steps = [0] * self.num_envs
        """Of each env's episode."""
        self._anew = [False] * self.num_envs
        """Envs whose next step begins an episode."""

    def reset(  # noqa: D102 - documented by gymnasium
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._check_open()
        seeds = [None] * self.num_envs if seed is None else seed
        seeds = [seeds + i for i in range(self.num_envs)] if isinstance(seeds, int) else seeds
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: {len(seeds)} of them for {self.num_envs} envs")
        options = dict(options or {})
        chosen = _places(options.pop("reset_mask", None), self.num_envs)
        started = self._run(self._agent_envs[i].areset(seed=seeds[i], options=options) for i in chosen)
        infos: dict[str, Any] = {}
        for i, (observation, info) in zip(chosen, started, strict=True):
            self._env_obs[i] = observation
            infos = self._add_info(infos, info, i)
            self._steps[i], self._anew[i] = 0, False
        # What stands of those that were not reset has been given away before.
        return self._observed() if len(chosen) == self.num_envs else deepcopy(self._observed()), infos

    def step(  # noqa: D102 - documented by gymnasium
        self, actions: Sequence[str | Message]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        self._check_open()
        if isinstance(actions, (str, Mapping)):  # both have a length, and hold texts
            raise ValueError(
                f"actions: one for each of {self.num_envs} envs, in a list; got {actions!r:.200}"
            )
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: {len(actions)} of them for {self.num_envs} envs")
        if self.autoreset_mode == AutoresetMode.DISABLED and any(self._anew):
            ended = [i for i, anew in enumerate(self._anew) if anew]
            raise ValueError(f"envs {ended} have ended: reset them, with options={{'reset_mask': ...}}")
        rewards = np.zeros(self.num_envs, np.float64)
        terminations, truncations = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for i, step in enumerate(self._run(self._step(i, action) for i, action in enumerate(actions))):
            self._env_obs[i], rewards[i], terminations[i], truncations[i], info = step
            if info:
                infos = self._add_info(infos, info, i)
        return self._observed(), rewards, terminations, truncations, infos

    def close_extras(self, **kwargs: Any) -> None:  # noqa: D102 - documented by gymnasium
        self._run(env.aclose() for env in self._agent_envs)

    def _check_open(self) -> None:
        if self.closed:  # what it would begin, a second close() would leave
            raise ClosedEnvironmentError("the vector env was closed; make a new one")

    async def _step(self, i: int, action: str | Message) -> tuple[Observation, float, bool, bool, Info]:
        env = self._agent_envs[i]
        if self._anew[i]:
            self._steps[i], self._anew[i] = 0, False
            observation, info = await env.areset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = await env.astep(action)
        self._steps[i] += 1
        truncated = truncated or self._steps[i] == self._max_episode_steps
        if terminated or truncated:
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                final: Info = {"final_obs": observation, "final_info": info}
                self._steps[i] = 0
                observation, info = await env.areset()
                info = final | info
            else:
                self._anew[i] = True
        return observation, reward, terminated, truncated, info

    def _run(self, coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Their results. Raises what the first of them raises that does."""
        if self._waits:
            return run_on_background_loop(_together(list(coroutines)))
        return [run_sync(coroutine) for coroutine in coroutines]

    def _observed(self) -> dict[str, Any]:
        observations: Any = self._env_obs
        return {"messages": tuple(o["messages"] for o in observations)}


def make_vector_env(
    name: str,
    *,
    num_envs: int = 1,
    max_episode_steps: int | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    **kwargs: Any,
) -> AgentVectorEnv:
    """`num_envs` envs of a registered id without its namespace; `kwargs` are each env's."""
    make = registry.load_object(str(gymnasium.spec(f"{registry.NAMESPACE}/{name}").entry_point))
    envs = [make(**kwargs) for _ in range(num_envs)]
    return AgentVectorEnv(envs, max_episode_steps=max_episode_steps, autoreset_mode=autoreset_mode)


def __getattr__(name: str) -> Callable[..., AgentVectorEnv]:
    # A spec that can be JSON names its vector env by a text "module:attribute", and hands it no id: the
    # attribute is the id.
    if f"{registry.NAMESPACE}/{name}" not in gymnasium.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(make_vector_env, name)


def _given(env: AgentEnv) -> AgentEnv:
    return env


def _places(mask: Any, num_envs: int) -> list[int]:
    """Envs to reset. Raises ValueError: no mask of them."""
    if mask is None:
        return list(range(num_envs))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask']: must be a bool array of shape ({num_envs},), got {mask!r}")
    if not mask.any():
        raise ValueError("options['reset_mask']: chooses no env")
    return np.flatnonzero(mask).tolist()


async def _together(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
