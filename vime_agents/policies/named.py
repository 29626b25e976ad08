"""Texts such as `scripted:gold` and `http://HOST:PORT/v1#NAME` -> policies that need no server of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from vime_agents.errors import ConfigError
from vime_agents.policies.admission import Admissions
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policies.pool import Player, PolicyPool
from vime_agents.policies.scripted import SCRIPTS, ScriptedPolicy
from vime_agents.policy import Policy

API_KEY_VARIABLE = "OPENAI_API_KEY"
"""Secrets come from the environment, never from flags: flags are recorded."""

Present = Mapping[str, Policy]
"""Name -> a policy that a command has already; not closed here."""
NOBODY: Present = MappingProxyType({})


def named_policy(
    flag: str,
    model: str,
    present: Present = NOBODY,
    *,
    serves: bool = False,
    admissions: Admissions | None = None,
) -> Policy:
    """The policy that a text names. Raises ConfigError: none, with what `flag` can be.

    `serves`: whether the command starts a server for a `vllm:FOLDER`, which is no model of this function's.
    `admissions`: of the servers that models are behind; None: their calls are sent at once.
    """
    kind, _, rest = model.partition(":")
    if kind == "scripted" and rest in SCRIPTS:
        return ScriptedPolicy(rest)
    if model in SCRIPTS:
        return ScriptedPolicy(model)
    if kind in ("http", "https"):
        url, _, name = model.partition("#")
        if not name:
            raise ConfigError(f"{flag}: {model!r} does not say which model of the server: write {url}#NAME")
        _check_url(flag, url)
        admission = None if admissions is None else admissions.of(url)
        return OpenAIChatPolicy(url, name, os.environ.get(API_KEY_VARIABLE), admission=admission)
    scripts = ", ".join([*present, *(f"scripted:{s}" for s in SCRIPTS)])
    served = " or vllm:FOLDER" if serves else ""
    raise ConfigError(f"{flag}: must be {scripts}, http://HOST:PORT/v1#NAME{served}, got {model!r}")


def _check_url(flag: str, url: str) -> None:
    """Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{flag}: {url!r} is no URL: {error}") from error
    if not host:
        raise ConfigError(f"{flag}: {url!r} names no host: write http://HOST:PORT/v1#NAME")


def named_agents(text: str) -> dict[str, str]:
    """`X=MODEL,Y=MODEL` -> agent or role -> model. Raises ConfigError: not AGENT=MODEL, or an agent twice."""
    models: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        agent, _, model = (piece.strip() for piece in part.partition("="))
        if not agent or not model:
            raise ConfigError(f"--agents: must be AGENT=MODEL,..., got {part!r}")
        if agent in models:
            raise ConfigError(f"--agents: {agent!r} is given twice")
        models[agent] = model
    return models


def pool_members(agent: str, model: str) -> list[str]:
    """`MODEL|MODEL|...` -> models; one alone is no pool. Raises ConfigError: none, or one of them twice."""
    models = [part.strip() for part in model.split("|")]
    if "" in models or len(set(models)) < len(models):
        raise ConfigError(f"--agents: {agent} must be MODEL|MODEL|..., each once, got {model!r}")
    return models


def player_of(agent: str, policies: Mapping[str, Policy], seed: int) -> Player:
    """Who plays `agent`: the only one of the policies, by the text that names it, or all of them in turn."""
    members = list(policies.values())
    if len(members) == 1:
        return members[0]
    if len({member.name for member in members}) < len(members):
        for text, member in policies.items():  # such as a model that two servers have
            member.name = text
    return PolicyPool(members, seed=f"{seed}/{agent}")


def agent_policies(text: str, seed: int = 0, present: Present = NOBODY) -> dict[str, Player]:
    """`--agents` -> agent or role -> policy or pool, for whoever closes them; `seed`: of the draw.

    Raises ConfigError.
    """
    players: dict[str, Player] = {}
    for agent, model in named_agents(text).items():
        names = pool_members(agent, model)
        members = {n: present.get(n) or named_policy("--agents", n, present) for n in names}
        players[agent] = player_of(agent, members, seed)
    return players
