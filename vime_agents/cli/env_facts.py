"""What can be told about an environment: from its class, and from one episode of its own gold replies."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import vime_agents
from vime_agents import registry
from vime_agents.env import AgentEnv
from vime_agents.episode import Episode
from vime_agents.evaluation.evaluate import env_maker, eval_requests, first_tasks
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.registry import ENVS_GROUP, MULTI_AGENT_ENVS_GROUP
from vime_agents.rollout.runner import Runner

SPLITS = ("train", "test")
BUILT_IN = "vime-agents"
"""The package that the ready-made environments come with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFacts:
    """One environment, without playing it. Plain data."""

    id: str
    entry_point: str
    """module:Class."""
    package: str | None
    """The installed package that registers it; None: nobody does, it was named by module:Class."""
    package_version: str | None
    doc: str = ""
    num_tasks: dict[str, int | None] = field(default_factory=dict)
    """By split; None: the env has no such split."""
    max_turns: int | None = None
    """None: neither an AgentEnv nor a MultiAgentEnv, so that nothing from here on is known."""
    reward_range: tuple[float, float] | None = None
    agents: tuple[str, ...] = ()
    """Who takes part, in an env of several agents."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Schemas, in the shape of OpenAI's `tools`."""
    sandbox: dict[str, Any] | None = None
    """The fields of its SandboxSpec; None: it needs none."""
    error: str | None = None
    """Why it cannot be loaded; then nothing but where it comes from is known."""

    @property
    def origin(self) -> str:
        """Where it comes from, in a word or two."""
        if self.package is None:
            return "not registered"
        return "built in" if self.package == BUILT_IN else f"{self.package} {self.package_version}"

    @property
    def summary(self) -> str:
        """The first line of its docstring, or why it cannot be loaded."""
        return f"cannot be loaded: {self.error}" if self.error else self.doc.split("\n", 1)[0]

    @property
    def tool_names(self) -> list[str]:
        """In the order in which the model is told of them."""
        return [schema["function"]["name"] for schema in self.tools]


def all_facts() -> list[EnvFacts]:
    """Every registered environment, by id; one that cannot be loaded says why."""
    return [facts_or_error(name) for name in sorted(registry.env_entry_points())]


def facts_or_error(name: str) -> EnvFacts:
    """As `facts`; what a plug-in raises is told, not raised: it must not hide the others."""
    try:
        return facts(name)
    except Exception as error:  # noqa: BLE001 - somebody else's module, class and constructor
        package, version = _package(name)
        return EnvFacts(
            id=name,
            entry_point=registry.env_entry_points()[name],
            package=package,
            package_version=version,
            error=str(error) or repr(error),
        )


def facts(env_id: str) -> EnvFacts:
    """One environment. Raises UnknownIdError, ConfigError, and whatever its module and class raise."""
    cls = registry.env_class(env_id)
    name = env_id.removeprefix(f"{registry.NAMESPACE}/")
    package, version = _package(name)
    known: dict[str, Any] = {
        "id": name,
        "entry_point": f"{cls.__module__}:{cls.__qualname__}",
        "package": package,
        "package_version": version,
        "doc": inspect.getdoc(cls) or "",
    }
    if not (isinstance(cls, type) and issubclass(cls, (AgentEnv, MultiAgentEnv))):
        return EnvFacts(**known)
    env = cls()
    try:
        tools: list[dict[str, Any]] = getattr(env, "tool_schemas", [])
    finally:
        env.close()
    sandbox = getattr(cls, "sandbox_spec", None)
    return EnvFacts(
        **known,
        num_tasks={split: _num_tasks(cls, split) for split in SPLITS},
        max_turns=cls.max_turns,
        reward_range=cls.reward_range,
        agents=() if isinstance(env, AgentEnv) else tuple(env.possible_agents),
        tools=tools,
        sandbox=None if sandbox is None else dataclasses.asdict(sandbox),
    )


def gold_episode(env_id: str, split: str) -> Episode:
    """The first task of a split, played by the env's own `gold`: what its reward is made of."""
    make_env = env_maker(env_id, split=split, seed=0)
    (request,) = eval_requests(first_tasks(make_env, 1), 1, seed=0)
    runner = Runner(make_env, ScriptedPolicy("gold"), env_id=env_id, max_retries=0)
    return asyncio.run(runner.play(request))


def _package(name: str) -> tuple[str | None, str | None]:
    """(name, version) of the package that registers an env."""
    known = registry.env_entry_points()
    for group in (ENVS_GROUP, MULTI_AGENT_ENVS_GROUP):
        for entry in metadata.entry_points(group=group, name=name):
            if entry.dist is not None and entry.value == known.get(name):
                return entry.dist.name, entry.dist.version
    # A checkout that is not installed has no metadata.
    return (BUILT_IN, vime_agents.__version__) if name in known else (None, None)


def _num_tasks(cls: type[AgentEnv | MultiAgentEnv], split: str) -> int | None:
    env = cls(split=split)
    try:
        return len(env.task_set())
    except Exception:  # noqa: BLE001 - an author's hook; a split that the env does not have is no error here
        return None
    finally:
        env.close()
