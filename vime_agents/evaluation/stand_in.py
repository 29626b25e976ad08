"""One stored episode -> its reward, by the graders that its env has now.

The env that is asked was never played: it has what the record holds, and refuses whatever else a grader asks
for. A refusal counts even where the grader's own `except` swallows it: else it would become a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partialmethod
from types import MappingProxyType
from typing import Any, NoReturn

from vime_agents.env import AgentEnv, own_attributes
from vime_agents.episode import RewardResult, Trajectory, messages_of
from vime_agents.errors import NotStored
from vime_agents.graded import ARTIFACTS, Graded, assigned_names, is_immutable
from vime_agents.reward import rewards_of, score_components, summed
from vime_agents.sandbox_env import SandboxEnv
from vime_agents.task import Task
from vime_agents.threads import run_in_thread

_LIVE = MappingProxyType(
    {
        "sandbox": "the episode's sandbox",
        "has_sandbox": "the episode's sandbox",
        "tools": "the state of the episode's tools",
        "_np_random": "the state of `np_random`",
    }
)
"""Attribute -> what it would give: an episode's own, that ended with it."""

_NONE = "the env that was played had none"


class Refused(NotStored):
    """Some components cannot be computed again."""

    def __init__(self, needs: Mapping[str, str]) -> None:
        self.needs = dict(needs)
        """Component, or `score` -> what it asks for that is not stored."""
        super().__init__("; ".join(f"{name} needs {what}" for name, what in needs.items()))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.needs,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """What an episode came to."""

    reward: RewardResult
    counters: Mapping[str, float]
    """Of the env: those from before the graders were asked, and what these counted."""


async def regrade(
    env: AgentEnv, task: Task, trajectory: Trajectory, graded: Graded, keep: Mapping[str, float]
) -> Regraded:
    """Ask the graders of `env`.

    Args:
        env: fresh, and of no other use afterwards.
        task: what was played.
        trajectory: of the only agent.
        graded: what the graders were given then.
        keep: components of `@reward` that are not computed -> their values.

    Raises:
        Refused: a component asks for what is not stored.
        EpisodeError: a grader failed. ContractError: one asks for what no episode has.
    """
    orders = _Orders(refused=_refused(env, graded), known=frozenset(graded.assigned), keep=keep)
    for name in {*graded.assigned, *orders.refused} - {*graded.state, *graded.unchanged, *_LIVE}:
        vars(env).pop(name, None)  # the episode ended without it, or it is not the episode's
    # The class of an env that is made already: what its constructor reads is refused to nobody.
    env.__class__ = _stand_in(type(env), orders)
    messages = messages_of(trajectory) if graded.messages is None else graded.messages
    try:
        reward = await env.grade_again(task, messages, graded)
    except Refused:
        raise
    except Exception:
        if orders.missed:  # whatever a grader made of a refusal
            raise Refused({"score": orders.take()}) from None
        raise
    if orders.missed:
        raise Refused({"score": orders.take()})
    return Regraded(reward=reward, counters=dict(env.counters))


@dataclass(slots=True)
class _Orders:
    """What a stand-in refuses, and what it was asked for."""

    refused: Mapping[str, str]
    """Attribute -> what it would give, and why it cannot."""
    known: frozenset[str]
    """Attributes of which it is known whether the episode had them."""
    keep: Mapping[str, float]
    missed: list[str] = field(default_factory=list)

    def refuse(self, name: str) -> NoReturn:
        """Note it. Raises NotStored."""
        what = self.refused.get(name, f"self.{name} ({_NONE})")
        self.missed.append(what)
        raise NotStored(f"{what} is not stored")

    def take(self) -> str:
        """All that was asked for in vain, each once."""
        missed, self.missed = dict.fromkeys(self.missed), []
        return ", ".join(missed)


def _stand_in(cls: type[AgentEnv], orders: _Orders) -> type[AgentEnv]:
    """`cls` that obeys orders."""

    def get(self: AgentEnv, name: str) -> Any:
        if name in orders.refused:
            orders.refuse(name)
        try:
            return cls.__getattribute__(self, name)
        except AttributeError:
            if name in orders.known or name.startswith("__"):
                raise
            orders.refuse(name)

    members: dict[str, Any] = {"__module__": cls.__module__, "__getattribute__": get}
    if cls.score is AgentEnv.score:
        members["score"] = partialmethod(_score_components_alone, orders)
    return type(cls.__name__, (cls,), members)


async def _score_components_alone(env: AgentEnv, orders: _Orders, text: str) -> RewardResult:
    """As `AgentEnv.score`, one component after the other, so that each one's refusal is its own."""
    values: dict[str, float] = {}
    weights: dict[str, float] = {}
    needs: dict[str, str] = {}
    for component in rewards_of(env):
        weights[component.name] = component.weight
        if component.name in orders.keep:
            values[component.name] = orders.keep[component.name]
            continue
        try:
            result = await score_components(env, text, [component], run_in_thread=run_in_thread)
        except Exception:
            if not orders.missed:
                raise
        else:
            if result.value is None and not orders.missed:
                return result
            values |= result.components
        if orders.missed:
            needs[component.name] = orders.take()
    if needs:
        raise Refused(needs)
    return summed(values, weights)


def _refused(env: AgentEnv, graded: Graded) -> dict[str, str]:
    """Attribute -> what it would give, of all that the env does not have as the episode had it."""
    cls = type(env)
    refused = dict(_LIVE)
    stored = {*graded.assigned, *graded.state, *graded.unchanged, *graded.lost, *own_attributes()}
    in_play = assigned_names(cls, skip="__init__")
    for name in (assigned_names(cls) | vars(env).keys()) - stored:
        # What a constructor alone sets, and nothing can change, is what it would have been in play.
        if name in in_play or name not in vars(env) or not is_immutable(vars(env)[name]):
            refused[name] = f"self.{name} ({_NONE})"
    for name, why in graded.lost.items():
        refused[name] = f"self.{name} ({why})"
    if graded.artifacts is None and isinstance(env, SandboxEnv):
        why = graded.lost.get(ARTIFACTS, "no grader read them then")
        refused["read_artifacts"] = f"the artifacts ({why})"
    return refused
