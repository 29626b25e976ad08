"""A Ray actor that plays episodes against one engine, and streams them back as they finish."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import ray

from vime_agents import registry
from vime_agents.config.train import SNAPSHOTS
from vime_agents.episode import Episode
from vime_agents.evaluation.evaluate import cast_of, env_maker
from vime_agents.policies.named import agent_policies
from vime_agents.policies.tokens import TokenPolicy
from vime_agents.policy import Sampling
from vime_agents.rendering.load import make_renderer
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest, play_to_the_end
from vime_agents.rollout.runner import Runner
from vime_agents.rollout.sandboxes import SandboxPool, sandbox_pool
from vime_agents.serving.engine_client import EngineClient


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """What every rollout of a run has in common."""

    env_id: str
    task_seed: int
    hf_checkpoint: str
    renderer: str
    max_context_tokens: int
    concurrency: int
    limits: Limits
    max_retries: int
    sandbox_pool_size: int = 0
    max_sandboxes: int | None = None
    """Of this player; None: as many as there is room for in its share of the host."""
    run: str = ""
    """Its name, for the labels of sandboxes."""
    agents: str = ""
    """Who else plays, as `--agents` says it."""
    rotate_seats: bool = False
    """Whether they change seats with the policy, from group to group."""
    generate_path: str | None = None
    """`module:function` that plays an episode; None: the turn loop."""


class RolloutActor:
    """One engine's player. Any number of them, on any node with a CPU."""

    def __init__(self, config: RolloutConfig, engine_url: str, snapshot_url: str | None = None) -> None:
        """`snapshot_url`: of the engine that snapshots play from, if any do."""
        self.config = config
        prompt_style = registry.env_class(config.env_id).prompt_style
        renderer = make_renderer(config.hf_checkpoint, prompt_style=prompt_style, renderer=config.renderer)
        self.policy = TokenPolicy(
            EngineClient(engine_url), renderer, max_context_tokens=config.max_context_tokens
        )
        self.snapshot: TokenPolicy | None = None
        if snapshot_url is not None:
            self.snapshot = TokenPolicy(
                EngineClient(snapshot_url),
                renderer,
                name=SNAPSHOTS,
                max_context_tokens=config.max_context_tokens,
                trainable=False,
            )
        present = {} if self.snapshot is None else {SNAPSHOTS: self.snapshot}
        self.others = agent_policies(config.agents, config.task_seed, present)
        self.players, _ = cast_of(config.env_id, self.policy, self.others, rotate_seats=config.rotate_seats)
        self.sandboxes: SandboxPool | None = None
        self.generate = play_to_the_end
        if config.generate_path is not None:
            self.generate = registry.load_object(config.generate_path, "--custom-generate-function-path")

    def host(self) -> str:
        """Where it runs, by Ray's name."""
        return ray.get_runtime_context().get_node_id()

    def open_sandboxes(self, num_players: int) -> None:
        """Have a pool of sandboxes, if the env has any, with a fair share of a host of `num_players`."""
        self.sandboxes = sandbox_pool(
            self.config.env_id,
            size=self.config.sandbox_pool_size,
            max_sandboxes=self.config.max_sandboxes,
            share=1 / num_players,
            run=self.config.run,
        )

    def name_snapshot(self, update: int) -> None:
        """Say in the records from now on that the snapshot of `update` plays."""
        if self.snapshot is not None:
            self.snapshot.name = f"snapshot@{update}"

    async def play(
        self, requests: Sequence[EpisodeRequest], split: str, sampling: Sampling
    ) -> AsyncIterator[Episode]:
        """Play every request; episodes in the order in which they finish."""
        config = self.config
        runner = Runner(
            env_maker(config.env_id, split=split, seed=config.task_seed),
            self.players,
            env_id=config.env_id,
            sampling=sampling,
            concurrency=min(config.concurrency, max(len(requests), 1)),
            limits=config.limits,
            max_retries=config.max_retries,
            generate=self.generate,
            sandboxes=self.sandboxes,
        )
        async for episode in runner.run(requests):
            yield episode

    async def sandbox_metrics(self) -> dict[str, float]:
        """What its pool of sandboxes did so far; nothing without one."""
        return {} if self.sandboxes is None else dict((await self.sandboxes.stats()).metrics())

    async def close(self) -> None:
        """Release connections and sandboxes."""
        async with contextlib.AsyncExitStack() as stack:  # each, also where another one cannot
            for policy in (self.policy, *self.others.values()):
                stack.push_async_callback(policy.aclose)
            if self.sandboxes is not None:
                stack.push_async_callback(self.sandboxes.aclose)


def create_player(
    config: RolloutConfig, engine_url: str, snapshot_url: str | None = None
) -> ray.actor.ActorHandle:
    """A rollout actor for one engine, and for one that snapshots play from."""
    # Players wait far more than they compute: several share the CPU set aside for them.
    return (
        ray.remote(RolloutActor)
        .options(num_cpus=0.01, max_concurrency=8)
        .remote(config, engine_url, snapshot_url)
    )
