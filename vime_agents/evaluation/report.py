"""Episodes -> one EvalReport. An episode without a trusted reward is never a zero: it is counted apart."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime_agents.episode import Episode, Trajectory
from vime_agents.evaluation.opponents import OpponentReport, OpponentTally
from vime_agents.evaluation.rating import Elo
from vime_agents.evaluation.statistics import mean_interval, mean_pass_at_k
from vime_agents.policies.metered import Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What one agent of an env of several came to, whoever played it."""

    policy: str
    """Who played it; several when opponents come from a pool or seats rotate."""
    mean: float
    """Mean reward of the episodes in which it has one; NaN when none has."""
    ci_low: float
    """95 % interval of the mean, as of EvalReport."""
    ci_high: float
    n_scored: int
    """Episodes in which it has a trusted reward."""
    stops: Mapping[str, int]
    """What ended its part: done, illegal_move, context_length, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What an evaluation came to."""

    env_id: str
    policy: str
    split: str
    seed: int
    num_tasks: int
    samples_per_task: int
    mean: float
    """Mean reward of the episodes that have one, over the agents that `policy` plays; NaN when none has."""
    ci_low: float
    """95 % interval of the mean, clustered by task; NaN where none can be given."""
    ci_high: float
    ci_method: str
    """wilson (0/1 rewards) or clustered-t."""
    mean_errors_as_zero: float
    """The mean if every episode without a reward had got 0."""
    n: int
    """Episodes played."""
    n_scored: int
    """Episodes with a trusted reward: what `mean` is over."""
    ok: int
    """Episodes that the environment ended."""
    truncated: int
    """Episodes that a limit ended."""
    truncated_share: float
    """Of `n`; 0 when nothing was played."""
    stops: Mapping[str, int]
    """What ended the episodes: done, max_turns, context_length, timeout:<stage>, error, ..."""
    errors: Mapping[str, int]
    """Failed episodes by class: model, env, tool, sandbox, grader, engine, ..."""
    error_examples: Mapping[str, str]
    """One message of each class."""
    pass_at_k: Mapping[int, float]
    """Unbiased pass@k for k = 1, 2, 4, ... up to the samples of a task; empty unless rewards are 0/1."""
    turns_mean: float
    call_p50_s: float
    """Median seconds of a call of `policy`, its retries included, but no waits for a place at a busy server;
    over the calls that were answered, of the attempts that count. NaN without one."""
    call_p95_s: float
    """Seconds that 95 % of these calls did not exceed."""
    sampled_tokens: int
    """0 where the server does not say."""
    metrics: Mapping[str, float]
    """Means of the env's counters over all episodes; with a pool of sandboxes, what it did in all."""
    duration_s: float
    """Wall clock of this start; of an interrupted evaluation, without that of the starts before."""
    usage: Spent = field(default_factory=Spent)
    """What the calls of `policy` took in all, those of earlier starts and of failed attempts included."""
    cache_hits: int = 0
    """Calls of `policy` that a cache answered, of the attempts that count: part of `turns_mean` and
    `sampled_tokens`, but neither of `usage` nor of the seconds of calls."""
    cache_failures: int = 0
    """Answers that this start could not look up in the cache, or store there."""
    cost: float | None = None
    """Dollars, for `usage`; None without prices."""
    budget_spent: str = ""
    """What stopped the evaluation before all of it was played, in words; empty when it is complete."""
    agents: Mapping[str, AgentReport] = field(default_factory=dict)
    """Each agent of an env of several; empty for an env of one."""
    opponents: Mapping[str, OpponentReport] = field(default_factory=dict)
    """By the name of who else played; empty without others."""
    first_seat: Elo | None = None
    """What the first seat of a game of two is worth; None unless seats rotate."""

    @property
    def infrastructure_error_rate(self) -> float:
        """Share of the episodes that failed, and not because of the model."""
        return sum(count for kind, count in self.errors.items() if kind != "model") / max(self.n, 1)

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; NaN becomes None."""
        return without_nan(dataclasses.asdict(self))


@dataclass(slots=True)
class Tally:
    """Counts episodes as they finish; holds none of them."""

    opponents: Collection[str] = ()
    """Agents whose rewards do not count: they were given to others than the evaluated policy."""
    rewards: list[float] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    """[len(rewards)] the task of each reward."""
    n_scored: int = 0
    max_rewards: int = 1
    """Most rewards that one episode has: more than 1 when the policy plays against itself."""
    agents: dict[str, _AgentTally] = field(default_factory=dict)
    against: OpponentTally = field(init=False)
    statuses: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    error_examples: dict[str, str] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    call_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds of each call of the evaluated policy that was really made."""
    cache_hits: int = 0
    sampled_tokens: int = 0

    def __post_init__(self) -> None:
        self.against = OpponentTally(self.opponents)

    @property
    def n(self) -> int:
        """Episodes so far."""
        return self.statuses.total()

    @property
    def mean(self) -> float:
        """Mean reward so far."""
        return float(np.mean(self.rewards)) if self.rewards else math.nan

    @property
    def errors(self) -> dict[str, int]:
        """Failed episodes so far, by class."""
        kinds = {s.removeprefix("error:"): c for s, c in self.statuses.items() if s.startswith("error:")}
        return dict(sorted(kinds.items()))

    def add(self, episode: Episode) -> None:
        """Count one episode."""
        self.statuses[episode.status] += 1
        self.stops[episode.outcome.stop] += 1
        if episode.outcome.cause is not None:
            self.error_examples.setdefault(episode.outcome.cause, episode.outcome.detail)
        counted = [t for t in episode.trajectories if t.cast_as not in self.opponents]
        rewards = [t.reward.value for t in counted if t.reward.value is not None]
        self.rewards.extend(rewards)
        self.tasks.extend([episode.task_id] * len(rewards))
        self.n_scored += bool(counted) and len(rewards) == len(counted)
        self.max_rewards = max(self.max_rewards, len(counted))
        if len(episode.trajectories) > 1:
            for trajectory in episode.trajectories:
                self.agents.setdefault(trajectory.agent, _AgentTally()).add(episode, trajectory)
        self.against.add(episode)
        self.counters.update(episode.metrics)
        self.turns += sum(len(t.turns) for t in episode.trajectories)
        self.call_s.extend(turn.policy_s for t in counted for turn in t.turns if not turn.from_cache)
        self.cache_hits += sum(turn.from_cache for t in counted for turn in t.turns)
        self.sampled_tokens += sum(t.num_sampled_tokens for t in episode.trajectories)

    def report(
        self,
        *,
        env_id: str,
        policy: str,
        split: str,
        seed: int,
        num_tasks: int,
        samples_per_task: int,
        duration_s: float,
    ) -> EvalReport:
        """The report on everything counted."""
        interval = mean_interval(self.rewards, self.tasks)
        # Of the agents of one episode, none is another try at the task.
        most = samples_per_task if self.max_rewards == 1 else 0
        ks = sorted({most, *(2**i for i in range(most.bit_length()))} - {0})
        opponents, first_seat = self.against.report()
        passes = {k: mean_pass_at_k(self.rewards, self.tasks, k) for k in ks}
        return EvalReport(
            env_id=env_id,
            policy=policy,
            split=split,
            seed=seed,
            num_tasks=num_tasks,
            samples_per_task=samples_per_task,
            mean=interval.mean,
            ci_low=interval.low,
            ci_high=interval.high,
            ci_method=interval.method,
            mean_errors_as_zero=math.fsum(self.rewards) / max(self.n * self.max_rewards, 1),
            n=self.n,
            n_scored=self.n_scored,
            ok=self.statuses["ok"],
            truncated=self.statuses["truncated"],
            truncated_share=self.statuses["truncated"] / max(self.n, 1),
            stops=dict(sorted(self.stops.items())),
            errors=self.errors,
            error_examples=self.error_examples,
            pass_at_k={k: value for k, value in passes.items() if value is not None},
            turns_mean=self.turns / max(self.n, 1),
            call_p50_s=_quantile(self.call_s, 0.5),
            call_p95_s=_quantile(self.call_s, 0.95),
            sampled_tokens=self.sampled_tokens,
            metrics={name: total / self.n for name, total in sorted(self.counters.items())},
            duration_s=duration_s,
            cache_hits=self.cache_hits,
            agents={name: tally.report() for name, tally in self.agents.items()},
            opponents=opponents,
            first_seat=first_seat,
        )


@dataclass(slots=True)
class _AgentTally:
    policies: set[str] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    stops: Counter[str] = field(default_factory=Counter)

    def add(self, episode: Episode, trajectory: Trajectory) -> None:
        outcome = trajectory.outcome or episode.outcome
        self.stops[outcome.stop] += 1
        self.policies.add(trajectory.policy)
        if trajectory.reward.value is not None:
            self.rewards.append(trajectory.reward.value)
            self.tasks.append(episode.task_id)

    def report(self) -> AgentReport:
        interval = mean_interval(self.rewards, self.tasks)
        return AgentReport(
            policy="|".join(sorted(self.policies)),
            mean=interval.mean,
            ci_low=interval.low,
            ci_high=interval.high,
            n_scored=len(self.rewards),
            stops=dict(sorted(self.stops.items())),
        )


def _quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values; NaN without any."""
    return float(np.quantile(np.asarray(values), share)) if len(values) else math.nan


def without_nan(value: Any) -> Any:
    """JSON values with None in the place of NaN."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
