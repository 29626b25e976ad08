"""Tasks -> Runner -> EvalReport. No Ray, no torch; the same function serves training runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vime_agents import registry
from vime_agents.env import AgentEnv
from vime_agents.episode import Episode
from vime_agents.errors import ConfigError
from vime_agents.evaluation.report import EvalReport, Tally
from vime_agents.learning.group_rewards import GroupRewarder
from vime_agents.multi_agent.assign import ANYBODY, assign
from vime_agents.multi_agent.env import MultiAgentEnv
from vime_agents.multi_agent.seats import alike
from vime_agents.policies.cast import Cast
from vime_agents.policies.metered import Meter, MeteredPolicy
from vime_agents.policies.named import named_agents
from vime_agents.policies.pool import Player
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Policy, Sampling
from vime_agents.rollout.limits import Limits
from vime_agents.rollout.play import EpisodeRequest
from vime_agents.rollout.runner import Runner
from vime_agents.rollout.sandboxes import sandbox_pool
from vime_agents.task import Task
from vime_agents.wrappers import AgentWrapper, TurnLimit, wrap

AnyEnv = AgentEnv | AgentWrapper | MultiAgentEnv


async def evaluate(
    env_id: str,
    policy: Policy,
    *,
    agents: Mapping[str, Player] | None = None,
    rotate_seats: bool = False,
    num_tasks: int,
    samples_per_task: int = 1,
    split: str = "test",
    seed: int = 0,
    concurrency: int = 64,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    max_retries: int = 2,
    sandbox_pool_size: int = 4,
    max_sandboxes: int | None = None,
    tasks: Sequence[Task] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    finished: Sequence[Episode] = (),
    keep_graded: bool = False,
    meter: Meter | None = None,
) -> EvalReport:
    """Play the first tasks of a split and report.

    Args:
        env_id: id or `module:Class` of an AgentEnv or a MultiAgentEnv.
        policy: who plays; stays open. Of several agents: all that `agents` does not name.
        agents: who else plays, by agent or role; their rewards are in the report, but not in its mean. Of a
            pool, each of its members plays as often as the others.
        rotate_seats: agents of one role, or of none, change seats from episode to episode.
        num_tasks: tasks to play; all when the split has fewer.
        samples_per_task: episodes of each task.
        split: split of the tasks.
        seed: of procedural tasks, of the envs and of sampling; the same seed plays the same tasks.
        concurrency: episodes in flight.
        limits: bounds on each episode.
        sampling: how to sample; the default is greedy.
        max_retries: fresh attempts at an episode whose infrastructure failed.
        sandbox_pool_size: sandboxes to keep ready, if the env has any; 0: each is made when it is asked for.
        max_sandboxes: open at once; None: as many as this host has room for.
        tasks: play these instead of the env's own.
        on_episode: called with each episode as it finishes; if the env compares the episodes of a task with
            each other (`group_rewards`), when all of them have.
        finished: episodes of the same evaluation that were played before; they count, and are not played
            again. Of compared ones, whole groups.
        keep_graded: episodes hold what their graders were given, so that they can be scored again.
        meter: counts what the calls of `policy` take, on top of what it counted before. Once its budget is
            spent no episode starts; those in flight are finished, their further attempts included, and of
            compared ones the rest of their group. They are not cut off: the short ones would be left.

    Raises:
        UnknownIdError: no such env, agent or role.
        ConfigError: not an env of ours, nobody left for `policy`, no tasks in this split, or `finished` is of
            other tasks; or the budget cannot be kept, as the server does not count tokens.
    """
    meter = meter or Meter()
    make_env = env_maker(env_id, split=split, seed=seed)
    players, opponents = cast_of(
        env_id, MeteredPolicy(policy, meter), agents or {}, rotate_seats=rotate_seats
    )
    chosen = first_tasks(make_env, num_tasks) if tasks is None else list(tasks[:num_tasks])
    if not chosen:
        raise no_tasks(env_id, split)
    requests = list(eval_requests(chosen, samples_per_task, seed))
    left = requests_left(requests, finished)
    sandboxes = sandbox_pool(env_id, size=sandbox_pool_size, max_sandboxes=max_sandboxes)
    runner = Runner(
        make_env,
        players,
        env_id=env_id,
        sampling=sampling or Sampling(temperature=0.0),
        concurrency=max(1, min(concurrency, len(left))),
        limits=limits,
        max_retries=max_retries,
        sandboxes=sandboxes,
        keep_graded=keep_graded,
    )
    comparisons = comparisons_of(env_id)
    groups, tally = GroupRewarder(comparisons, samples_per_task), Tally(opponents=opponents)
    for episode in finished:
        tally.add(episode)
    started = time.monotonic()
    affordable = _within_budget(left, meter, whole_groups=bool(comparisons))
    try:
        async with contextlib.aclosing(runner.run(affordable)) as episodes:
            async for played in episodes:
                for episode in await groups.add(played):
                    tally.add(episode)
                    if on_episode is not None:
                        on_episode(episode)
        metrics = {} if sandboxes is None else (await sandboxes.stats()).metrics()
    finally:
        if sandboxes is not None:
            await sandboxes.aclose()
    report = tally.report(
        env_id=env_id,
        policy=policy.name,
        split=split,
        seed=seed,
        num_tasks=len(chosen),
        samples_per_task=samples_per_task,
        duration_s=time.monotonic() - started,
    )
    return replace(
        report,
        metrics={**report.metrics, **metrics},
        usage=meter.spent,
        cost=meter.cost,
        budget_spent=meter.exhausted if report.n < len(requests) else "",
    )


def _within_budget(
    requests: Iterable[EpisodeRequest], meter: Meter, *, whole_groups: bool
) -> Iterator[EpisodeRequest]:
    """The requests, until the budget is spent; `whole_groups`: and the rest of the groups that began.

    Raises:
        ConfigError: there is a budget, and the server does not count tokens.
    """
    begun: set[str] = set()
    for request in requests:
        if meter.limited and meter.spent.calls_without_usage:
            raise ConfigError(
                "a budget cannot be kept: the model's server does not say how many tokens its answers took "
                "(`usage`); leave out --max-cost and --max-total-tokens"
            )
        if meter.exhausted and not (whole_groups and request.group_id in begun):
            return
        begun.add(request.group_id)
        yield request


def no_tasks(env_id: str, split: str) -> ConfigError:
    """There is nothing to play."""
    return ConfigError(f"env {env_id!r} has no tasks in split {split!r}")


def requests_left(requests: Iterable[EpisodeRequest], finished: Sequence[Episode]) -> list[EpisodeRequest]:
    """The requests that `finished` does not answer. Raises ConfigError: it answers others."""
    wanted = {r.episode_id: r for r in requests}
    for episode in finished:
        request = wanted.pop(episode.id, None)
        if request is None or (request.task.id, request.seed) != (episode.task_id, episode.seed):
            raise ConfigError(
                f"episode {episode.id} (task {episode.task_id!r}) was played before, and is none of this "
                "evaluation: have the environment's tasks changed? Begin anew, in another folder"
            )
    return list(wanted.values())


def cast_of(
    env_id: str, policy: Policy, agents: Mapping[str, Player], *, rotate_seats: bool = False
) -> tuple[Policy | Cast, frozenset[str]]:
    """(who plays, as the Runner takes it; the agents that are given to others than `policy`).

    Raises:
        UnknownIdError: no such agent or role.
        ConfigError: `agents` of an env that has one, nobody is left for `policy`, or nobody can change seats.
    """
    if not agents:
        if rotate_seats:
            raise ConfigError(
                "rotating seats: one policy plays them all; assign some of the agents to others"
            )
        return policy, frozenset()
    cls = registry.env_class(env_id)
    if not issubclass(cls, MultiAgentEnv):
        raise ConfigError(f"env {env_id!r} has one agent: there are no others to assign")
    policies: dict[str, Player] = {ANYBODY: policy, **agents}
    assigned = assign(cls.possible_agents, cls.roles, policies)
    own = {agent for agent in assigned if not {agent, cls.roles.get(agent), ANYBODY} & {*agents}}
    if not own:
        raise ConfigError(
            f"all agents of {env_id!r} are assigned to others: nobody is left to evaluate or train"
        )
    if rotate_seats and not any(0 < len(own & {*g}) < len(g) for g in alike(cls.possible_agents, cls.roles)):
        raise ConfigError(
            f"rotating seats: no agent of {env_id!r} that others play has the role of one that they do not"
        )
    return Cast(policies, rotate_seats), frozenset(assigned) - own


def opponents_of(env_id: str, agents: str, *, rotate_seats: bool = False) -> frozenset[str]:
    """The agents that `--agents` gives to others. Raises what `cast_of` does; ConfigError: no such text."""
    anybody = ScriptedPolicy("wrong")
    assigned = dict.fromkeys(named_agents(agents), anybody)
    return cast_of(env_id, anybody, assigned, rotate_seats=rotate_seats)[1]


def comparisons_of(env_id: str) -> Sequence[Any]:
    """The env's `group_rewards`, which compare the episodes of a task; most have none."""
    return getattr(registry.env_class(env_id), "group_rewards", ())


def compared_episodes(env_id: str, samples_per_task: int) -> int:
    """How many episodes of a task are compared with each other, and stay together."""
    return samples_per_task if comparisons_of(env_id) else 1


def env_maker(env_id: str, *, split: str, seed: int) -> Callable[[], AnyEnv]:
    """What makes fresh envs of a split, as their id was registered. Raises UnknownIdError, ConfigError."""
    cls = registry.env_class(env_id)
    if not (isinstance(cls, type) and issubclass(cls, (AgentEnv, MultiAgentEnv))):
        raise ConfigError(
            f"env {env_id!r} is a {cls!r}; evaluation needs a subclass of AgentEnv or MultiAgentEnv"
        )
    if issubclass(cls, MultiAgentEnv):
        return lambda: cls(split=split, task_seed=seed)
    kwargs: dict[str, Any] = {"split": split, "task_seed": seed}
    spec = registry.registered_spec(env_id)
    if spec is None:
        return lambda: cls(**kwargs)
    limit = (
        [] if spec.max_episode_steps is None else [TurnLimit.wrapper_spec(max_turns=spec.max_episode_steps)]
    )
    return lambda: wrap(cls(**{**kwargs, **spec.kwargs}), [*limit, *spec.additional_wrappers])


def first_tasks(make_env: Callable[[], AnyEnv], num: int) -> list[Task]:
    """The first tasks of the env's split; all when it has fewer."""
    env = make_env()
    try:
        tasks = env.task_set()
        return [tasks[index] for index in range(min(num, len(tasks)))]
    finally:
        env.close()


def eval_requests(tasks: Sequence[Task], samples_per_task: int, seed: int) -> Iterator[EpisodeRequest]:
    """One request for each sample of each task."""
    for index, task in enumerate(tasks):
        for sample in range(samples_per_task):
            yield eval_request(task, index, sample, seed, lot=index * samples_per_task + sample)


def eval_request(task: Task, index: int, sample: int, seed: int, *, lot: int) -> EpisodeRequest:
    """The request for one sample of a task; its seed is a pure function of (seed, index, sample)."""
    return EpisodeRequest(
        task=task,
        group_id=task.id,
        episode_id=f"eval-{index}-{sample}",
        seed=int(np.random.SeedSequence([seed, index, sample]).generate_state(1)[0]),
        lot=lot,
    )
