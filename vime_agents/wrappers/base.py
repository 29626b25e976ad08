"""What wrappers are written with: plain hooks, called by the sync face and by the async one alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec, load_env_creator

from vime_agents.env import AgentEnv, Info, Observation
from vime_agents.episode import RewardResult
from vime_agents.errors import ConfigError
from vime_agents.messages import Message
from vime_agents.sandbox import SandboxProvider
from vime_agents.task import TaskSet
from vime_agents.threads import run_in_thread, run_on_background_loop


@dataclass(slots=True)
class Step:
    """What a step gives."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: Info
    cut: str = ""
    """A limit that `answer` found reached, as in `info["stop"]`: the episode is scored and ends."""

    @property
    def done(self) -> bool:
        """Whether the env ended the episode."""
        return self.terminated or self.truncated


class AgentWrapper(gymnasium.Wrapper[Observation, "str | Message", Observation, "str | Message"]):
    """Base of our wrappers. Override `begin`, `action`, `answer`; none of them may block.

    The env inside may be an AgentEnv, another wrapper of ours, or one of Gymnasium's, which is driven in a
    thread. A subclass whose spec shall survive JSON is a `gymnasium.utils.RecordConstructorArgs` too.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self._return = 0.0

    # -------------------------------------------------------------------------------------- hooks

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """What the caller gets from a reset."""
        return observation, info

    def action(self, action: str | Message) -> str | Message:
        """What the env gets for the policy's reply."""
        return action

    def answer(self, step: Step) -> Step:
        """What the caller gets from a step."""
        return step

    # --------------------------------------------------------------------------------- async face

    async def areset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """As `AgentEnv.areset`."""
        inner: Any = self.env
        if self._inner_is_async:
            values = await inner.areset(seed=seed, options=options)
        else:
            values = await run_in_thread(lambda: inner.reset(seed=seed, options=options))
        self._return = 0.0
        return self.begin(*values)

    async def astep(self, action: str | Message) -> tuple[Observation, float, bool, bool, Info]:
        """As `AgentEnv.astep`."""
        inner: Any = self.env
        given = self.action(action)
        if self._inner_is_async:
            values = await inner.astep(given)
        else:
            values = await run_in_thread(lambda: inner.step(given))
        step = self._answered(values)
        if step.cut:
            self._cut(step, await self.score_partial() if self._can_score else None)
        return self._returned(step)

    async def score_partial(self) -> RewardResult:
        """As `AgentEnv.score_partial`."""
        inner: Any = self.env
        if self._inner_is_async:
            return await inner.score_partial()
        score = inner.get_wrapper_attr("score_partial")
        return await run_in_thread(lambda: run_on_background_loop(score()))

    async def aclose(self) -> None:
        """As `AgentEnv.aclose`."""
        inner: Any = self.env
        if self._inner_is_async:
            await inner.aclose()
        else:
            await run_in_thread(inner.close)

    def use_sandboxes(self, provider: SandboxProvider) -> None:
        """As `AgentEnv.use_sandboxes`; without effect on an env that is driven in a thread.

        Such an env lives on another event loop than `provider`, and makes its own sandboxes.
        """
        inner: Any = self.env
        if self._inner_is_async:
            inner.use_sandboxes(provider)

    # ---------------------------------------------------------------------------------- sync face

    def reset(  # noqa: D102 - documented by gymnasium and `areset`
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        values = self.env.reset(seed=seed, options=options)
        self._return = 0.0
        return self.begin(*values)

    def step(self, action: str | Message) -> tuple[Observation, float, bool, bool, Info]:  # noqa: D102
        step = self._answered(self.env.step(self.action(action)))
        if step.cut:
            self._cut(step, run_on_background_loop(self.score_partial()) if self._can_score else None)
        return self._returned(step)

    # ------------------------------------------------------------------------------ what the env has

    def task_set(self) -> TaskSet:
        """The tasks of the env's split."""
        return self.env.get_wrapper_attr("task_set")()

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """Tools that the model is told about."""
        return wrapped_attribute(self.env, "tool_schemas", [])

    @property
    def counters(self) -> dict[str, float]:
        """Of the episode; a wrapper may add to them."""
        return wrapped_attribute(self.env, "counters", {})

    def count(self, name: str, amount: float = 1) -> None:
        """As `AgentEnv.count`; without effect on an env that counts nothing."""
        counters = self.counters
        counters[name] = counters.get(name, 0) + amount

    # ------------------------------------------------------------------------------------ internals

    @property
    def _inner_is_async(self) -> bool:
        return hasattr(self.env, "areset")

    @property
    def _can_score(self) -> bool:
        """An env that only gives step rewards has been paid for what it was."""
        return isinstance(self.unwrapped, AgentEnv)

    def _answered(self, values: Any) -> Step:
        observation, reward, terminated, truncated, info = values
        step = self.answer(Step(observation, float(reward), terminated, truncated, info))
        if step.done:
            step.cut = ""
        return step

    def _cut(self, step: Step, result: RewardResult | None) -> None:
        step.truncated = True
        step.info = {**step.info, "stop": step.cut}
        if result is not None:
            step.info["reward_result"] = result
            if result.value is not None:  # so that the rewards of all steps sum to it
                step.reward = result.value - self._return

    def _returned(self, step: Step) -> tuple[Observation, float, bool, bool, Info]:
        self._return += step.reward
        return step.observation, step.reward, step.terminated, step.truncated, step.info


def wrap(env: AgentEnv, specs: Sequence[WrapperSpec]) -> AgentEnv | AgentWrapper:
    """`env` in the wrappers of a Gymnasium spec, the first one innermost.

    Raises:
        ConfigError: a wrapper's spec does not hold its arguments.
    """
    wrapped: Any = env
    for spec in specs:
        if spec.kwargs is None:
            raise ConfigError(
                f"wrapper {spec.name}: its spec holds no arguments; make it a RecordConstructorArgs"
            )
        wrapped = load_env_creator(spec.entry_point)(env=wrapped, **spec.kwargs)
    return wrapped if isinstance(wrapped, (AgentEnv, AgentWrapper)) else AgentWrapper(wrapped)


def wrapped_attribute(env: Any, name: str, default: Any) -> Any:
    """Of the outermost wrapper that has it, or of the env; `default` when none has."""
    if isinstance(env, gymnasium.Env) and env.has_wrapper_attr(name):
        return env.get_wrapper_attr(name)
    return default
