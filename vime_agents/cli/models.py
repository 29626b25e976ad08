"""`--model` texts -> policies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from vime_agents import registry
from vime_agents.config.evaluation import EvalConfig
from vime_agents.errors import ConfigError
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policies.scripted import SCRIPTS, ScriptedPolicy
from vime_agents.policy import Policy

API_KEY_VARIABLE = "OPENAI_API_KEY"
"""Secrets come from the environment, never from flags: flags are recorded."""


@contextlib.asynccontextmanager
async def open_policy(config: EvalConfig) -> AsyncIterator[Policy]:
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
    policy = _without_server(config.model, kind, rest)
    try:
        yield policy
    finally:
        await policy.aclose()


def _without_server(model: str, kind: str, rest: str) -> Policy:
    if kind == "scripted" and rest in SCRIPTS:
        return ScriptedPolicy(rest)
    if kind in ("http", "https"):
        url, _, name = model.partition("#")
        if not name:
            raise ConfigError(f"--model: {model!r} does not say which model of the server: write {url}#NAME")
        return OpenAIChatPolicy(url, name, os.environ.get(API_KEY_VARIABLE))
    scripts = ", ".join(f"scripted:{s}" for s in SCRIPTS)
    raise ConfigError(f"--model: must be {scripts}, http://HOST:PORT/v1#NAME or vllm:FOLDER, got {model!r}")


@contextlib.asynccontextmanager
async def _served(config: EvalConfig, folder: Path) -> AsyncIterator[Policy]:
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
            log_path=Path(config.out) / "vllm.log" if config.out else None,
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
