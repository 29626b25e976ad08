"""From what an author's graders return to a RewardResult.

An env's reward is what its `score` returns, or the sum of its components:

```
class Summaries(AgentEnv):
    @reward
    def right(self, text, answer): ...              # the last message, and the task's "answer"

    @reward(weight=0.2, process=True)
    def short(text): ...                            # in a process that can be killed: no `self`

    @reward(weight=0)
    def num_turns(self, turn): ...                  # weight 0: a metric
```

A component asks for what it needs by the names of its parameters. A reward that cannot be trusted has no
value: whatever goes wrong is a GraderError, or an Unscorable, and never a zero.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, overload

import numpy as np

from vime_agents.episode import Episode, RewardResult
from vime_agents.errors import ConfigError, ContractError, EpisodeError, GraderError, Unscorable, nearest
from vime_agents.grading.pool import GraderLimits, GraderPool, default_pool
from vime_agents.messages import Message

Score = float | int | bool | Mapping[str, "float | tuple[float, float]"] | RewardResult
"""A number, components (`{"name": value}` with weight 1, or `{"name": (value, weight)}`), or the result."""

RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]

ANY_NUMBER = (-math.inf, math.inf)
"""The range of what has none."""
_OF_THE_EPISODE = ("text", "messages", "task", "task_id", "turn", "counters", "env", "count")
_ONLY_HERE = ("self", "env", "count")
"""What cannot go to another process."""


class ScoredEnv(Protocol):
    """What components see of an env."""

    task: Mapping[str, Any]
    task_id: str
    messages: list[Message]
    turn: int
    counters: dict[str, float]
    reward_range: ClassVar[tuple[float, float]]

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One component of an env's reward; made by `@reward`."""

    graded_function: Callable[..., Any]
    name: str
    weight: float
    range: tuple[float, float]
    """A value outside is the grader's failure."""
    process: GraderLimits | None
    """What its process may take; None: it runs in this process, off the event loop unless it is `async`."""
    parameters: tuple[str, ...]
    optional: frozenset[str]
    """Parameters that have a default."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, for its own tests."""
        return self.graded_function(*args, **kwargs)


@overload
def reward(function: Callable[..., Any], /) -> Reward: ...
@overload
def reward(
    function: None = None,
    /,
    *,
    weight: float = 1.0,
    name: str | None = None,
    range: tuple[float, float] = (0.0, 1.0),
    process: bool | GraderLimits = False,
) -> Callable[[Callable[..., Any]], Reward]: ...


def reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    weight: float = 1.0,
    name: str | None = None,
    range: tuple[float, float] = (0.0, 1.0),
    process: bool | GraderLimits = False,
) -> Reward | Callable[[Callable[..., Any]], Reward]:
    """Make a function, a method or any callable a component of a reward.

    Its parameters may be `text` (the agent's last message), `messages`, `task` (the task's inputs),
    `task_id`, `turn`, `counters`, `env`, `count` (adds to the episode's metrics), or any key of the task's
    inputs.

    Args:
        function: sync or async; returns a number within `range`.
        weight: its share of the sum; 0 makes it a metric.
        name: None: the function's.
        range: both ends are inside.
        process: run it in a process that can be killed, within the pool's limits or those given.

    Raises:
        ConfigError: a weight or range that cannot be meant. ContractError: parameters that cannot be given.
    """
    if function is None:
        return lambda function: _component(function, weight, name, range, process)
    return _component(function, weight, name, range, process)


def rewards_of(env: object) -> tuple[Reward, ...]:
    """Every component of an env, in the order of definition, base classes first."""
    found: dict[str, Reward] = {}
    for cls in reversed(type(env).__mro__):
        found |= {name: value for name, value in vars(cls).items() if isinstance(value, Reward)}
    return tuple(found.values())


async def score_components(
    env: ScoredEnv,
    text: str,
    rewards: Sequence[Reward],
    *,
    run_in_thread: RunInThread = asyncio.to_thread,
    pool: GraderPool | None = None,
) -> RewardResult:
    """Ask every component, all at once, for the episode that `env` has just played.

    The result is `unscorable` as soon as one component is.

    Args:
        env: the episode.
        text: the agent's last message.
        rewards: the components.
        run_in_thread: runs a blocking function off the event loop.
        pool: where those with `process` run; None: this process's own.

    Raises:
        GraderError, or another EpisodeError: one failed. ContractError: one asks for what there is not.
    """
    names = [component.name for component in rewards]
    if len(set(names)) != len(names):
        raise ContractError(f"{type(env).__name__}: two rewards have the same name: {names}")
    given = _given(env, text)
    calls = [asyncio.ensure_future(_grade(c, env, given, run_in_thread, pool)) for c in rewards]
    try:
        values = await asyncio.gather(*calls)
    except Unscorable as error:
        return RewardResult(value=None, status="unscorable", detail=str(error))
    finally:
        for call in calls:  # one failed: what the others say has no reader
            call.cancel()
    weights = {component.name: component.weight for component in rewards}
    return summed(dict(zip(names, values, strict=True)), weights)


def reward_from_score(score: object, reward_range: tuple[float, float]) -> RewardResult:
    """Check and weigh what `score` returned.

    The value is the weighted sum of the components; weight 0 makes a component a metric.

    Raises:
        GraderError: not a number, NaN or infinite, or outside the declared range.
    """
    if isinstance(score, RewardResult):
        result = score
    elif isinstance(score, Mapping):
        components: dict[str, float] = {}
        weights: dict[str, float] = {}
        for name, part in score.items():
            if isinstance(part, tuple) and len(part) != 2:
                raise GraderError(f"{name} must be a number or (value, weight), got {part!r}")
            value, weight = part if isinstance(part, tuple) else (part, 1.0)
            components[name], weights[name] = _number(value, name), _number(weight, f"{name} weight")
        result = summed(components, weights)
    else:
        value = _number(score, "score")
        result = RewardResult(value=value, components={"score": value}, weights={"score": 1.0})
    low, high = reward_range
    if result.value is not None and not low <= result.value <= high:
        raise GraderError(f"reward {result.value} is outside the declared range [{low}, {high}]")
    return result


def with_component(result: RewardResult, name: str, value: float, weight: float = 1.0) -> RewardResult:
    """A result with one more component. What has no value stays without.

    Raises:
        GraderError: the value is no finite number, or the name is taken.
    """
    if name in result.components:
        raise GraderError(f"two components have the name {name!r}")
    if result.value is None:
        return result
    number = _number(value, name)
    return replace(
        result,
        value=math.fsum((result.value, weight * number)),
        components={**result.components, name: number},
        weights={**result.weights, name: weight},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReward:
    """A component that compares the episodes of a group with each other."""

    function: Callable[[Sequence[Episode]], Sequence[float] | Awaitable[Sequence[float]]]
    """Gets the episodes that have a trusted reward, and returns a number for each, in their order."""
    name: str
    weight: float = 1.0
    range: tuple[float, float] = (0.0, 1.0)
    agent: str = "agent"
    """Whose reward it is."""


def _component(
    function: Callable[..., Any],
    weight: float,
    name: str | None,
    bounds: tuple[float, float],
    process: bool | GraderLimits,
) -> Reward:
    name = name or getattr(function, "__name__", "")
    if not name:
        raise ConfigError(f"the reward {function!r} needs a `name`")
    if not math.isfinite(weight):
        raise ConfigError(f"reward {name!r}: the weight must be finite, got {weight!r}")
    if not bounds[0] <= bounds[1]:
        raise ConfigError(f"reward {name!r}: the range must be (low, high), got {bounds!r}")
    signature = inspect.signature(function).parameters.values()
    if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in signature):
        raise ContractError(f"reward {name!r}: parameters are given by name; it has *, ** or / in its own")
    parameters = tuple(p.name for p in signature)
    here = [p for p in parameters if p in _ONLY_HERE]
    if process and here:
        raise ContractError(f"reward {name!r} runs in a process of its own and cannot have {here[0]!r} there")
    limits = process if isinstance(process, GraderLimits) else GraderLimits() if process else None
    optional = frozenset(p.name for p in signature if p.default is not p.empty)
    return Reward(
        graded_function=function,
        name=name,
        weight=float(weight),
        range=bounds,
        process=limits,
        parameters=parameters,
        optional=optional,
    )


def _given(env: ScoredEnv, text: str) -> dict[str, Any]:
    """What components may ask for. The episode's own names come before the task's."""
    own = (
        text,
        tuple(env.messages),
        env.task,
        env.task_id,
        env.turn,
        dict(env.counters),
        env,
        env.count,
    )
    return {**env.task, **dict(zip(_OF_THE_EPISODE, own, strict=True))}


async def _grade(
    component: Reward,
    env: ScoredEnv,
    given: Mapping[str, Any],
    run_in_thread: RunInThread,
    pool: GraderPool | None,
) -> float:
    kwargs = _arguments(component, env, given)
    function = component.graded_function
    try:
        if component.process is not None:
            pool = pool or default_pool()
            value = await pool.run(function, kwargs=kwargs, limits=component.process)
        elif inspect.iscoroutinefunction(function):
            value = await function(**kwargs)
        else:
            value = await run_in_thread(lambda: function(**kwargs))
            value = await value if inspect.isawaitable(value) else value
    except Unscorable as error:
        raise Unscorable(f"{component.name}: {error}") from error
    except (EpisodeError, ConfigError, ContractError):
        raise
    except Exception as error:
        raise GraderError(f"{component.name}: {error!r}") from error
    return in_range(value, component.name, component.range)


def _arguments(component: Reward, env: ScoredEnv, given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name in component.parameters:
        if name == "self":
            found[name] = env
        elif name in given:
            found[name] = given[name]
        elif name not in component.optional:
            near = nearest(name, given)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ContractError(
                f"reward {component.name!r} asks for {name!r}; there are {', '.join(_OF_THE_EPISODE)}, "
                f"and the task's {', '.join(map(str, env.task)) or 'nothing'}{hint}"
            )
    return found


def summed(components: Mapping[str, float], weights: Mapping[str, float]) -> RewardResult:
    """The weighted sum of components, which have the same keys as their weights."""
    total = math.fsum(components[name] * weights[name] for name in components)
    return RewardResult(value=total, components=components, weights=weights)


def in_range(value: object, name: str, bounds: tuple[float, float]) -> float:
    """A component's value as a float.

    Raises:
        GraderError: no finite number, or outside its declared range.
    """
    number = _number(value, name)
    if not bounds[0] <= number <= bounds[1]:
        raise GraderError(f"{name} is {number}, outside its declared range [{bounds[0]}, {bounds[1]}]")
    return number


def _number(value: object, name: str) -> float:
    # numbers.Real and np.bool_: what NumPy computes counts too.
    if not isinstance(value, (numbers.Real, np.bool_)) or not math.isfinite(value):
        raise GraderError(f"{name} must be a finite number, got {value!r}")
    return float(value)
