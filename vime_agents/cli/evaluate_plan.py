"""`vime-agents eval --dry-run`: what would be played. Nothing is played, asked, started or written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_agents import registry
from vime_agents.cli.envs import sandbox_text
from vime_agents.config.evaluation import EvalConfig
from vime_agents.config.prices import Prices
from vime_agents.errors import ConfigError
from vime_agents.evaluation.evaluate import (
    AnyEnv,
    compared_episodes,
    env_maker,
    eval_requests,
    first_tasks,
    no_tasks,
    requests_left,
)
from vime_agents.multi_agent.assign import ANYBODY, assign
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.policies.metered import Meter, Spent
from vime_agents.policies.named import named_agents, named_policy, pool_members
from vime_agents.policies.response_cache import check_cache_file
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import AGENT
from vime_agents.serving.hf_folder import check_hf_folder
from vime_agents.storage.eval_directory import EvalDirectory

_NAMED = 5
"""Tasks that the plan names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What an evaluation would play."""

    env_id: str
    split: str
    seed: int
    num_tasks: int
    task_ids: tuple[str, ...]
    """Of the first tasks."""
    samples_per_task: int
    episodes: int
    """In all, those that are finished included."""
    players: Mapping[str, str]
    """Agent -> the model, or the pool of models, that plays it."""
    rotate_seats: bool
    limits: Mapping[str, float | None]
    """Of one episode: seconds, turns, and tokens sampled in a turn."""
    sandbox: Mapping[str, Any] | None
    """What each episode's sandbox is to be, as in a SandboxSpec; None: it needs none."""
    out: Mapping[str, Any] | None
    """The folder, how many episodes in it are finished and left, and in words which budget its earlier starts
    have spent; None without `--out`."""
    config: EvalConfig

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return plain | {"task_ids": list(self.task_ids), "config": self.config.to_dict()}


def plan_of(config: EvalConfig) -> EvalPlan:
    """What the same command without `--dry-run` would play.

    Raises:
        ConfigError, UnknownIdError, DatasetError: what that command would raise before it plays. That another
            process uses the folder is no error.
    """
    config = dataclasses.replace(config, dry_run=False)
    _check_models(config)
    if config.cache is not None:
        _check_can_be_made("--cache", Path(config.cache).absolute().parent)
        check_cache_file(config.cache)
    if config.out:
        _check_can_be_made("--out", Path(config.out).absolute())
    make_env = env_maker(config.env, split=config.split, seed=config.seed)
    tasks = first_tasks(make_env, config.num_tasks)
    if not tasks:
        raise no_tasks(config.env, config.split)
    requests = list(eval_requests(tasks, config.samples_per_task, config.seed))
    out = None
    if config.out:
        group_size = compared_episodes(config.env, config.samples_per_task)
        finished = EvalDirectory.finished_in(Path(config.out), config, tasks, group_size=group_size)
        left = len(requests_left(requests, finished))
        spent = meter_of(config, EvalDirectory.spent_in(Path(config.out))).exhausted
        out = {"path": config.out, "finished": len(finished), "left": left, "budget_spent": spent}
    cls: Any = registry.env_class(config.env)
    sandbox = getattr(cls, "sandbox_spec", None)
    env = make_env()
    try:
        max_turns = _max_turns(env)
    finally:
        env.close()
    times = limits_of(config)
    return EvalPlan(
        env_id=config.env,
        split=config.split,
        seed=config.seed,
        num_tasks=len(tasks),
        task_ids=tuple(task.id for task in tasks[:_NAMED]),
        samples_per_task=config.samples_per_task,
        episodes=len(requests),
        players=_players(config, cls),
        rotate_seats=config.rotate_seats,
        limits={
            "episode_s": times.episode_s,
            "generation_s": times.generation_s,
            "env_s": times.env_s,
            "max_turns": max_turns,
            "max_response_tokens": config.max_response_len,
        },
        sandbox=None if sandbox is None else dataclasses.asdict(sandbox),
        out=out,
        config=config,
    )


def meter_of(config: EvalConfig, spent: Spent) -> Meter:
    """What counts the model's calls, on top of what was spent."""
    return Meter(
        prices=None if config.price is None else Prices.parse(config.price),
        max_cost=config.max_cost,
        max_tokens=config.max_total_tokens,
        spent=spent,
    )


def limits_of(config: EvalConfig) -> Limits:
    """The bounds on each episode."""
    return Limits(
        episode_s=config.episode_timeout, generation_s=config.turn_timeout, env_s=config.turn_timeout
    )


def format_plan(plan: EvalPlan) -> str:
    """The plan for a person; the settings at its end are YAML for `--config`."""
    config, limits = plan.config, plan.limits
    few = (
        "" if plan.num_tasks == config.num_tasks else f" (all that there are; -n asks for {config.num_tasks})"
    )
    unnamed = plan.num_tasks - len(plan.task_ids)
    more = f", ... {unnamed} more" if unnamed else ""
    players = [f"{agent}: {model}" for agent, model in plan.players.items()]
    seats = ", seats rotate" if plan.rotate_seats else ""
    lines = [
        f"{plan.env_id} ({plan.split}, {plan.num_tasks} tasks x {plan.samples_per_task}, seed {plan.seed}): "
        "nothing is played",
        f"  tasks     {plan.num_tasks}{few}: {', '.join(plan.task_ids)}{more}",
        f"  episodes  {plan.episodes}, {config.concurrency} at once",
        f"  played by {', '.join(players)}{seats}",
        f"  limits    {limits['max_turns']} turns of {limits['max_response_tokens']} tokens, "
        f"{limits['episode_s']:g} s an episode, {limits['generation_s']:g} s a call or answer, "
        f"{config.max_retries} further attempts",
    ]
    if budget := _budget(config):
        lines.append(f"  budget    {budget}")
    if plan.sandbox is not None:
        most = "as many as there is room for" if config.max_sandboxes is None else str(config.max_sandboxes)
        lines.append(
            f"  sandboxes {sandbox_text(dict(plan.sandbox))}; at once: {most}, "
            f"{config.sandbox_pool_size} of them kept ready"
        )
    if plan.out is not None:
        over = plan.out["budget_spent"]
        lines.append(
            f"  out       {plan.out['path']}: {plan.out['finished']} finished, {plan.out['left']} left"
            + (f", none of which would begin: the budget is spent ({over})" if over else "")
        )
    return "\n".join([*lines, "  settings", *(f"    {line}" for line in config.to_yaml().splitlines())])


def _check_can_be_made(flag: str, folder: Path) -> None:
    """Raises ConfigError: the folder is none, or cannot be written or made."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
    except OSError as error:
        raise ConfigError(f"{flag}: cannot look at the folder {folder}: {error.strerror}") from error
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{flag}: cannot make the folder {folder}: {there} is no folder, or cannot be written"
        )


def _budget(config: EvalConfig) -> str:
    dollars = "" if config.max_cost is None else f"${config.max_cost:g}"
    tokens = "" if config.max_total_tokens is None else f"{config.max_total_tokens} tokens"
    return ", ".join(filter(None, (dollars, tokens)))


def _check_models(config: EvalConfig) -> None:
    """Raises ConfigError: a text that names no model, or a folder that vLLM could not serve."""
    pools = (pool_members(agent, text) for agent, text in named_agents(config.agents).items())
    named = [("--model", config.model), *(("--agents", model) for members in pools for model in members)]
    for flag, model in named:
        kind, _, folder = model.partition(":")
        if kind == "vllm" and folder:
            check_hf_folder(folder)
        else:
            named_policy(flag, model, serves=True)  # a policy opens nothing before its first call


def _players(config: EvalConfig, cls: type) -> dict[str, str]:
    if not issubclass(cls, MultiAgentEnv):
        return {AGENT: config.model}
    return assign(cls.possible_agents, cls.roles, {ANYBODY: config.model, **named_agents(config.agents)})


def _max_turns(env: AnyEnv) -> int | None:
    """By the env or by a wrapper around it, whichever is less; None: nothing bounds them."""
    found: list[int] = []
    inner: Any = env
    while inner is not None:
        most = vars(inner).get("max_turns", getattr(type(inner), "max_turns", None))
        found += [most] if isinstance(most, int) else []
        inner = vars(inner).get("env")
    return min(found, default=None)
