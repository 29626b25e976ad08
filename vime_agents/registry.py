"""Ids of plug-ins -> objects. Plug-ins are entry points; nothing of theirs is imported before it is used.

Groups: `vime_agents.envs` (name = Gymnasium id without the namespace, value = env class),
`vime_agents.multi_agent_envs` (name = id, value = MultiAgentEnv class) and `vime_agents.sandboxes` (name =
backend, value = provider class).
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from vime_agents.errors import ConfigError, ContractError, UnknownIdError

NAMESPACE = "vime_agents"
ENVS_GROUP = "vime_agents.envs"
MULTI_AGENT_ENVS_GROUP = "vime_agents.multi_agent_envs"
"""Apart from the others: of these, Gymnasium makes one agent's seat."""
GAME_SEAT = "vime_agents.policies.game_seat:game_seat"
VECTOR_ENV = "vime_agents.vector_env"
SANDBOXES_GROUP = "vime_agents.sandboxes"

# What `pip install` would write as entry points: a checkout that is not installed has no metadata.
_BUILT_IN = {
    ENVS_GROUP: {
        "Calculator-v0": "vime_envs.calculator:Calculator",
        "Coding-v0": "vime_envs.coding:Coding",
        "DocumentQa-v0": "vime_envs.document_qa:DocumentQa",
        "GuessNumber-v0": "vime_envs.games.guess_number:GuessNumber",
        "KeyLookup-v0": "vime_envs.key_lookup:KeyLookup",
        "ShellTasks-v0": "vime_envs.shell_tasks:ShellTasks",
        "TextToSql-v0": "vime_envs.sql:TextToSql",
        "WordGuess-v0": "vime_envs.games.word_guess:WordGuess",
        "WordProblems-v0": "vime_envs.word_problems:WordProblems",
    },
    MULTI_AGENT_ENVS_GROUP: {
        "KuhnPoker-v0": "vime_envs.games.kuhn_poker:KuhnPoker",
        "Negotiation-v0": "vime_envs.games.negotiation:Negotiation",
        "PrisonersDilemma-v0": "vime_envs.games.prisoners_dilemma:PrisonersDilemma",
        "ProposerSolver-v0": "vime_envs.games.proposer_solver:ProposerSolver",
        "TicTacToe-v0": "vime_envs.games.tic_tac_toe:TicTacToe",
        "TwentyQuestions-v0": "vime_envs.games.twenty_questions:TwentyQuestions",
    },
    SANDBOXES_GROUP: {
        "docker": "vime_sandboxes.docker:DockerSandboxProvider",
        "e2b": "vime_sandboxes.e2b:E2BSandboxProvider",
        "local": "vime_sandboxes.local:LocalSandboxProvider",
        "unsafe": "vime_sandboxes.unsafe:UnsafeProvider",
    },
}


@cache
def entry_points(group: str) -> dict[str, str]:
    """Name -> 'module:attribute' of every plug-in in `group`, installed ones first."""
    found = dict(_BUILT_IN.get(group, {}))
    found.update({e.name: e.value for e in metadata.entry_points(group=group)})
    return found


def env_entry_points() -> dict[str, str]:
    """Name -> 'module:attribute' of every env, of one agent or of several."""
    return entry_points(MULTI_AGENT_ENVS_GROUP) | entry_points(ENVS_GROUP)


def load_object(path: str, what: str = "object") -> Any:
    """Import 'module:attribute' or 'module.attribute'.

    Raises:
        ConfigError: the module or the attribute does not exist; names both.
    """
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute:
        raise ConfigError(f"{what} must be written 'module:name', got {path!r}")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise ConfigError(f"{what} {path!r}: no module named {missing!r}") from error
        raise
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise ConfigError(f"{what} {path!r}: module {module_name!r} has no {attribute!r}")
        target = getattr(target, part)
    return target


def register_all() -> None:
    """Put every known env into Gymnasium's registry, as `vime_agents/<name>`; import none."""
    seats = {name: (GAME_SEAT, {"game": name}) for name in entry_points(MULTI_AGENT_ENVS_GROUP)}
    envs = {name: (value, {}) for name, value in entry_points(ENVS_GROUP).items()}
    for name, (value, kwargs) in (seats | envs).items():
        env_id = f"{NAMESPACE}/{name}"
        if env_id not in gymnasium.registry:
            gymnasium.register(
                id=env_id, entry_point=value, vector_entry_point=f"{VECTOR_ENV}:{name}", kwargs=kwargs
            )


def env_class(env_id: str) -> type:
    """The class behind `Name-v0`, `vime_agents/Name-v0`, any Gymnasium id, or `module:Class`.

    Raises:
        UnknownIdError: with the nearest known id.
        ConfigError: `module:Class` that does not exist.
    """
    name = env_id.removeprefix(f"{NAMESPACE}/")
    known = env_entry_points()
    if name in known:
        return load_object(known[name], f"env {env_id!r}")
    if env_id in gymnasium.registry:
        entry_point = gymnasium.registry[env_id].entry_point
        if isinstance(entry_point, str):
            return load_object(entry_point, f"env {env_id!r}")
        if isinstance(entry_point, type):
            return entry_point
        raise ContractError(f"env {env_id!r} is registered with a function; give 'module:Class'")
    if ":" in env_id:
        return load_object(env_id, "env")
    raise UnknownIdError("env", env_id, known)


def registered_spec(env_id: str) -> EnvSpec | None:
    """What Gymnasium's registry says of an id: arguments and wrappers; None for `module:Class` and games."""
    if env_id.removeprefix(f"{NAMESPACE}/") in entry_points(MULTI_AGENT_ENVS_GROUP):
        return None
    return gymnasium.registry.get(f"{NAMESPACE}/{env_id}") or gymnasium.registry.get(env_id)


def sandbox_pool(*, size: int, max_sandboxes: int | None = None, share: float = 1.0, run: str = "") -> Any:
    """A pool that lends sandboxes of every backend; a `SandboxProvider` with `await stats()`.

    Args:
        size: sandboxes to keep warm.
        max_sandboxes: open at once; None: as many as there is room for.
        share: of this host's room, when several processes make sandboxes on it.
        run: name of the run, for the sandboxes' labels.
    """
    pool = load_object("vime_sandboxes.pool:SandboxPool", "the pool of sandboxes")
    return pool(size=size, max_sandboxes=max_sandboxes, share=share, run=run)


def sandbox_provider(name: str) -> Any:
    """A new provider of the backend `name`. What it makes is in no ledger, as what a pool makes is.

    Raises:
        UnknownIdError: with the nearest known backend.
    """
    known = entry_points(SANDBOXES_GROUP)
    if name not in known:
        raise UnknownIdError("sandbox backend", name, known)
    return load_object(known[name], f"sandbox backend {name!r}")()
