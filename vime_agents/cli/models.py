"""`--model` texts -> policies."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from vime_agents import registry
from vime_agents.config.evaluation import EvalConfig
from vime_agents.config.play import PlayConfig
from vime_agents.policies.admission import Admissions
from vime_agents.policies.named import (
    NOBODY,
    Present,
    named_agents,
    named_policy,
    player_of,
    pool_members,
)
from vime_agents.policies.pool import Player
from vime_agents.policy import Policy


@contextlib.asynccontextmanager
async def open_policy(
    config: EvalConfig | PlayConfig, present: Present = NOBODY, admissions: Admissions | None = None
) -> AsyncIterator[Policy]:
    """The policy that `--model` names; closed at the end, and so is a server that it needed.

    `admissions`: of the servers of http: models; what is started here for a vllm: model queues by itself.

    Raises:
        ConfigError: not the name of a model.
        ServingError: the server of a vllm: model did not start.
    """
    kind, _, rest = config.model.partition(":")
    if kind == "vllm" and rest:
        async with _served(config, Path(rest), "vllm.log") as policy:
            yield policy
        return
    if config.model in present:
        yield present[config.model]
        return
    policy = named_policy("--model", config.model, present, serves=True, admissions=admissions)
    try:
        yield policy
    finally:
        await policy.aclose()


@contextlib.asynccontextmanager
async def open_agents(
    config: EvalConfig | PlayConfig, present: Present = NOBODY, admissions: Admissions | None = None
) -> AsyncIterator[dict[str, Player]]:
    """Agent or role -> the policy or the pool that `--agents` names; closed at the end, with their servers.

    `admissions`: as of `open_policy`.

    Raises:
        ConfigError: not AGENT=MODEL, an agent twice, or no model.
        ServingError: the server of a vllm: model did not start.
    """
    models = {agent: pool_members(agent, text) for agent, text in named_agents(config.agents).items()}
    opened: dict[str, Policy] = {}
    folders: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        for model in dict.fromkeys(name for names in models.values() for name in names):
            kind, _, rest = model.partition(":")
            if model in present:
                opened[model] = present[model]
            elif kind == "vllm" and rest:
                folders.append(rest)
            else:
                opened[model] = named_policy("--agents", model, present, serves=True, admissions=admissions)
                stack.push_async_callback(opened[model].aclose)
        # What is wrong with the others must not cost the start of a server.
        for number, folder in enumerate(folders):
            served = _served(config, Path(folder), f"vllm-agents-{number}.log")
            opened[f"vllm:{folder}"] = await stack.enter_async_context(served)
        yield {
            agent: player_of(agent, {name: opened[name] for name in names}, config.seed)
            for agent, names in models.items()
        }


@contextlib.asynccontextmanager
async def _served(config: EvalConfig | PlayConfig, folder: Path, log: str) -> AsyncIterator[Policy]:
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
            log_path=Path(config.out) / log if isinstance(config, EvalConfig) and config.out else None,
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
