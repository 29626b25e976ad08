"""Env + policy -> Trace: everything that an episode returned, each call bounded. Never judges it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime_agents.checking.author import AuthorCode
from vime_agents.env import AgentEnv
from vime_agents.episode import RewardResult
from vime_agents.messages import Message
from vime_agents.policy import Conversation, Policy, Sampling


class Hung(Exception):
    """A call of the env did not come back; `where` is the author's line at which it was given up."""

    def __init__(self, what: str, limit_s: float, where: str | None) -> None:
        self.what, self.limit_s, self.where = what, limit_s, where
        super().__init__(f"{what} did not end within {limit_s:g} s")


@dataclass(slots=True, kw_only=True)
class Step:
    """What one call of `step` returned."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Trace:
    """One episode as its caller saw it."""

    observation: Any = None
    """Of the reset."""
    info: Any = None
    steps: list[Step] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)
    """Messages; of several agents, by agent: what each step was given."""
    error: Exception | None = None
    failed_in: str = ""
    """reset, policy or step, when there is an error."""
    where: str | None = None
    """The author's line at which the error came up."""

    @property
    def done(self) -> bool:
        """Whether the env ended it."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def reward_result(self) -> RewardResult | None:
        """The reward at the end."""
        result = self.steps[-1].info.get("reward_result") if self.steps else None
        return result if isinstance(result, RewardResult) else None

    @property
    def reward(self) -> float | None:
        """The episode's reward; None when it has none that can be trusted."""
        result = self.reward_result
        return None if result is None or self.error is not None else result.value

    def observations(self) -> list[Any]:
        """Of the reset and of each step."""
        return [self.observation, *(step.observation for step in self.steps)]

    def messages(self) -> list[Message]:
        """All that the env said, in order."""
        return [m for o in self.observations() if isinstance(o, Mapping) for m in o.get("messages", ())]


async def play(
    env: AgentEnv,
    policy: Policy,
    *,
    seed: int,
    task: int | None,
    limit_s: float,
    author: AuthorCode,
    max_steps: int | None = None,
) -> Trace:
    """Play until the episode ends, an error comes up, or `max_steps` (None: the env's limit and one)."""
    trace = Trace()
    options = None if task is None else {"task": task}
    try:
        trace.failed_in = "reset"
        trace.observation, trace.info = await bounded(
            env.areset(seed=seed, options=options), "reset", limit_s, author
        )
        conversation = Conversation(agent="agent", episode_id=f"check-{seed}")
        conversation.observe(trace.observation["messages"])
        begin = getattr(policy, "begin", None)
        if begin is not None:
            begin(conversation, env)
        while not trace.done and len(trace.steps) < (max_steps or env.max_turns + 1):
            trace.failed_in = "policy"
            sampling = Sampling(seed=seed * 1_000 + conversation.turn)
            generation = await bounded(
                policy.act(conversation, sampling=sampling), "the policy", limit_s, author
            )
            conversation.replied(generation.message)
            trace.replies.append(generation.message)
            trace.failed_in = "step"
            values = await bounded(env.astep(generation.message), "step", limit_s, author)
            observation, reward, terminated, truncated, info = values
            trace.steps.append(
                Step(
                    observation=observation,
                    reward=reward,
                    terminated=terminated,
                    truncated=truncated,
                    info=info,
                )
            )
            conversation.observe(observation["messages"])
        trace.failed_in = ""
    except Exception as error:  # noqa: BLE001 - what an env raises is what the checks are about
        trace.error = error
        trace.where = error.where if isinstance(error, Hung) else author.line_of(error)
    return trace


async def bounded(
    call: Coroutine[Any, Any, Any], what: str, limit_s: float, author: AuthorCode, *, patience_s: float = 2.0
) -> Any:
    """Await a call of the env. Raises Hung when it takes longer than `limit_s`."""
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait([task], timeout=limit_s)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=patience_s)
        raise
    if not done:
        where = author.line_now([task, *(asyncio.all_tasks() - before)])
        task.cancel()
        await asyncio.wait([task], timeout=patience_s)
        raise Hung(what, limit_s, where)
    return task.result()


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def comparable(value: Any) -> Any:
    """`value` as lists, strings and numbers, equal in two processes when the values are.

    Sets are sorted and addresses left out; an error is its type and message.
    """
    if isinstance(value, Trace):
        return {
            "reset": comparable([value.observation, value.info]),
            "steps": [comparable(step) for step in value.steps],
            "error": None if value.error is None else comparable(value.error),
        }
    if isinstance(value, Mapping):
        return {str(key): comparable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(comparable(part)) for part in value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return comparable({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if value is None or isinstance(value, (str, int, float)):
        return value
    return _ADDRESS.sub("", f"{type(value).__name__}: {value!r}")


def first_difference(left: Any, right: Any, path: str = "") -> str | None:
    """Where two `comparable` values differ, and how; None when they do not."""
    if isinstance(left, dict) and isinstance(right, dict) and list(left) == list(right):
        parts = ((f"{path}.{key}", left[key], right[key]) for key in left)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        parts = ((f"{path}[{i}]", *pair) for i, pair in enumerate(zip(left, right, strict=True)))
    elif left == right or (left != left and right != right):  # NaN is itself here
        return None
    else:
        return f"{path.lstrip('.')}: {left!r:.150} and then {right!r:.150}"
    for name, one, other in parts:
        difference = first_difference(one, other, name)
        if difference is not None:
            return difference
    return None
