"""`--model` texts -> policies."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from vime_agents import registry
from vime_agents.config.evaluation import EvalConfig
from vime_agents.config.play import PlayConfig
from vime_agents.policies.named import NOBODY, Present, named_agents, named_policy
from vime_agents.policy import Policy


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
    policy = named_policy("--model", config.model, present)
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
        for agent, model in named_agents(config.agents).items():
            if model in present:
                policies[agent] = present[model]
                continue
            policies[agent] = named_policy("--agents", model, present)
            stack.push_async_callback(policies[agent].aclose)
        yield policies


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
