"""`--model` texts -> policies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

from vime_agents import registry
from vime_agents.config.evaluation import EvalConfig
from vime_agents.config.play import PlayConfig
from vime_agents.errors import ConfigError
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policies.scripted import SCRIPTS, ScriptedPolicy
from vime_agents.policy import Policy

API_KEY_VARIABLE = "OPENAI_API_KEY"
"""Secrets come from the environment, never from flags: flags are recorded."""

Present = Mapping[str, Policy]
"""Name -> a policy that a command has already; not closed here."""
NOBODY: Present = MappingProxyType({})


@contextlib.asynccontextmanager
async def open_policy(config: EvalConfig | PlayConfig, present: Present = NOBODY) -> AsyncIterator[Policy]:
    """The policy that `--model` names; closed at the end, and so is a server that it needed.

    Raises:
        ConfigError: not the name of a model.
        ServingError: the server of a vllm: model did not start.
    """
    kind, _, rest = config.model.partition(":")
    if kind == "vllm" and rest:
        async with _served(config, Path(rest)) as policy:
            yield policy
        return
    if config.model in present:
        yield present[config.model]
        return
    policy = _without_server("--model", config.model, present)
    try:
        yield policy
    finally:
        await policy.aclose()


@contextlib.asynccontextmanager
async def open_agents(
    config: EvalConfig | PlayConfig, present: Present = NOBODY
) -> AsyncIterator[dict[str, Policy]]:
    """Agent or role -> the policy that `--agents` names; closed at the end.

    Raises:
        ConfigError: not AGENT=MODEL, an agent twice, or a model that needs a server to be started.
    """
    policies: dict[str, Policy] = {}
    async with contextlib.AsyncExitStack() as stack:
        for part in filter(None, config.agents.split(",")):
            agent, _, model = (text.strip() for text in part.partition("="))
            if not agent or not model:
                raise ConfigError(f"--agents: must be AGENT=MODEL,..., got {part!r}")
            if agent in policies:
                raise ConfigError(f"--agents: {agent!r} is given twice")
            if model in present:
                policies[agent] = present[model]
                continue
            policies[agent] = _without_server("--agents", model, present)
            stack.push_async_callback(policies[agent].aclose)
        yield policies


def _without_server(flag: str, model: str, present: Present) -> Policy:
    kind, _, rest = model.partition(":")
    if kind == "scripted" and rest in SCRIPTS:
        return ScriptedPolicy(rest)
    if model in SCRIPTS:
        return ScriptedPolicy(model)
    if kind in ("http", "https"):
        url, _, name = model.partition("#")
        if not name:
            raise ConfigError(f"{flag}: {model!r} does not say which model of the server: write {url}#NAME")
        return OpenAIChatPolicy(url, name, os.environ.get(API_KEY_VARIABLE))
    scripts = ", ".join([*present, *(f"scripted:{s}" for s in SCRIPTS)])
    served = " or vllm:FOLDER" if flag == "--model" else ""
    raise ConfigError(f"{flag}: must be {scripts}, http://HOST:PORT/v1#NAME{served}, got {model!r}")


@contextlib.asynccontextmanager
async def _served(config: EvalConfig | PlayConfig, folder: Path) -> AsyncIterator[Policy]:
    # Only this kind of model needs a tokenizer and a server.
    from vime_agents.policies.tokens import TokenPolicy
    from vime_agents.rendering.load import make_renderer
    from vime_agents.serving.engine_client import EngineClient
    from vime_agents.serving.vllm_server import VllmServer, VllmServerConfig

    style = getattr(registry.env_class(config.env), "prompt_style", "chat")
    renderer = make_renderer(str(folder), prompt_style=style, renderer=config.renderer)
    server = VllmServer(
        VllmServerConfig(
            model=folder,
            max_model_len=config.max_context_len,
            seed=config.seed,
            extra_args=config.vllm_argv,
            log_path=Path(config.out) / "vllm.log" if isinstance(config, EvalConfig) and config.out else None,
        )
    )
    async with server:
        policy = TokenPolicy(
            EngineClient(server.url), renderer, name=folder.name, max_context_tokens=config.max_context_len
        )
        try:
            yield policy
        finally:
            await policy.aclose()
