"""Folders of `eval --out` -> how much better one is than another on the same tasks."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime_agents import registry
from vime_agents.config.evaluation import EvalConfig
from vime_agents.config.fields import options_of
from vime_agents.config.options import differences
from vime_agents.episode import Episode, Trajectory
from vime_agents.errors import ConfigError
from vime_agents.evaluation.evaluate import opponents_of
from vime_agents.evaluation.paired import SAME, PairedDifference, paired_difference, sign_flip_p_value
from vime_agents.evaluation.report import without_nan
from vime_agents.messages import Message
from vime_agents.storage.stored_evaluation import StoredEvaluation
from vime_agents.storage.stored_tasks import changed_tasks

_EXPECTED = frozenset({"env", "model", "num_tasks"})
"""Settings that may differ without a warning: what is compared, and what a count tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """One task that both played, with another mean reward."""

    task_id: str
    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Evaluation B against A, task by task."""

    env_id: str
    a: str
    """Folder."""
    b: str
    policy_a: str
    policy_b: str
    reward: PairedDifference
    """Of the episodes with a trusted reward; a task without one on either side is left out."""
    errors_as_zero: PairedDifference
    """As `reward`, if every episode without a trusted reward had got 0."""
    sign_flip_p_value: float | None
    """Exact, of `reward`; None where it does not hold or cannot be counted, see `sign_flip_p_value`."""
    parts: Mapping[str, PairedDifference]
    """Components of the reward, unweighted (`component/<name>`), turns, sampled_tokens, the shares of
    episodes that were truncated and that failed, and the counters of the env (`metric/<name>`)."""
    only_a: int
    """Tasks that the other has not played."""
    only_b: int
    unscored: int
    """Tasks of both in which one has no trusted reward."""
    worst: tuple[TaskChange, ...]
    """The tasks that lost most, the worst first."""
    best: tuple[TaskChange, ...]
    """The tasks that gained most, the best last: below `worst`, it goes on with it."""
    warnings: tuple[str, ...]
    """Why the difference may not be the model's."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; NaN becomes None."""
        return without_nan(dataclasses.asdict(self))


def compare(a: StoredEvaluation, b: StoredEvaluation, *, top: int = 10) -> Comparison:
    """Compare two evaluations of one environment.

    Args:
        a: what `b` is compared with.
        b: positive differences are in its favour.
        top: at most so many tasks that got worse, and as many that got better, are listed.

    Raises:
        ConfigError: they are of different environments, have no task in common, or their tasks of the same
            id are not the same.
        DatasetError: a line of the episodes is none.
    """
    _check_same_env(a, b)
    counted_a, counted_b = _Counted.of(a), _Counted.of(b)
    common = [task for task in counted_a.tasks if task in counted_b.tasks]
    if not common:
        raise ConfigError(
            f"{a.path} and {b.path} have no task in common{_hint(a, b)}. Evaluate both with the same --split"
        )
    _check_same_tasks(a, b, counted_a, counted_b)
    metrics = sorted(counted_a.metrics | counted_b.metrics)
    mean_a, mean_b = counted_a.means(common, metrics), counted_b.means(common, metrics)
    rewards_a, rewards_b = mean_a.pop("reward", {}), mean_b.pop("reward", {})
    changes = sorted(
        (TaskChange(task_id=t, a=rewards_a[t], b=rewards_b[t]) for t in rewards_a if t in rewards_b),
        key=lambda change: change.b - change.a,
    )
    reward = paired_difference(rewards_a, rewards_b)
    zeros = paired_difference(mean_a.pop("errors_as_zero"), mean_b.pop("errors_as_zero"))
    return Comparison(
        env_id=a.env_id,
        a=str(a.path),
        b=str(b.path),
        policy_a=str(a.settings.get("model", "?")),
        policy_b=str(b.settings.get("model", "?")),
        reward=reward,
        errors_as_zero=zeros,
        sign_flip_p_value=_exact(changes, counted_a, counted_b),
        parts={
            name: paired_difference(mean_a.get(name, {}), mean_b.get(name, {}))
            for name in dict.fromkeys([*mean_a, *mean_b])
        },
        only_a=len(counted_a.tasks) - len(common),
        only_b=len(counted_b.tasks) - len(common),
        unscored=len(common) - reward.num_tasks,
        worst=tuple(change for change in changes[:top] if change.b - change.a < -SAME),
        best=tuple(change for change in changes[max(0, len(changes) - top) :] if change.b - change.a > SAME),
        warnings=tuple(_warnings(a, b, counted_a, counted_b)),
    )


@dataclass(slots=True)
class _TaskSums:
    """What one task's episodes came to."""

    episodes: int = 0
    rewards: int = 0
    """Trusted ones."""
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Quantity -> sum over the episodes, or the rewards, that have it."""
    components: Counter[str] = field(default_factory=Counter)
    """Component -> rewards that have it."""
    prompt: tuple[Message, ...] | None = None
    """What was said first."""

    def add(self, episode: Episode, counted: Iterable[Trajectory]) -> None:
        """Count one episode, by the trajectories of the evaluated policy."""
        self.episodes += 1
        self.sums["truncated"] += episode.outcome.kind == "truncated"
        self.sums["failed"] += episode.outcome.kind == "failed"
        for name, amount in episode.metrics.items():
            self.sums[f"metric/{name}"] += amount
        for trajectory in counted:
            if self.prompt is None and trajectory.turns:
                self.prompt = trajectory.turns[0].messages
            self.sums["turns"] += len(trajectory.turns)
            self.sums["sampled_tokens"] += trajectory.num_sampled_tokens
            if trajectory.reward.value is None:
                continue
            self.rewards += 1
            self.sums["reward"] += trajectory.reward.value
            for name, value in trajectory.reward.components.items():
                self.sums[f"component/{name}"] += value
                self.components[f"component/{name}"] += 1


@dataclass(slots=True)
class _Counted:
    """One evaluation, task by task; holds sums and no episodes."""

    tasks: dict[str, _TaskSums]
    most_agents: int
    """Rewards that an episode has when nothing fails: more than 1 when the policy plays against itself."""

    @classmethod
    def of(cls, evaluation: StoredEvaluation) -> _Counted:
        opponents = _opponents(evaluation)
        tasks: dict[str, _TaskSums] = defaultdict(_TaskSums)
        most_agents = 1
        for episode in evaluation.episodes():
            counted = [t for t in episode.trajectories if t.cast_as not in opponents]
            most_agents = max(most_agents, len(counted))
            tasks[episode.task_id].add(episode, counted)
        return cls(dict(tasks), most_agents)

    @property
    def metrics(self) -> set[str]:
        """What any episode counted."""
        return {name for sums in self.tasks.values() for name in sums.sums if name.startswith("metric/")}

    def means(self, tasks: Collection[str], metrics: Sequence[str]) -> dict[str, dict[str, float]]:
        """Quantity -> task -> mean. Of `metrics`, an episode that never counted one has counted 0."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for task in tasks:
            sums = self.tasks[task]
            found["errors_as_zero"][task] = sums.sums["reward"] / (sums.episodes * self.most_agents)
            if sums.rewards:
                found["reward"][task] = sums.sums["reward"] / sums.rewards
            for name, count in sums.components.items():
                found[name][task] = sums.sums[name] / count
            for name in ("turns", "sampled_tokens", "truncated", "failed", *metrics):
                found[name][task] = sums.sums[name] / sums.episodes
        return found


def _opponents(evaluation: StoredEvaluation) -> frozenset[str]:
    agents = str(evaluation.settings.get("agents") or "")
    return opponents_of(evaluation.env_id, agents) if agents else frozenset()


def _exact(changes: Collection[TaskChange], a: _Counted, b: _Counted) -> float | None:
    """None unless each task has as many rewards on both sides: else its difference is not symmetric."""
    if any(a.tasks[c.task_id].rewards != b.tasks[c.task_id].rewards for c in changes) or not changes:
        return None
    return sign_flip_p_value([change.b - change.a for change in changes])


# ------------------------------------------------------------------------------------- is it the same?


def _check_same_env(a: StoredEvaluation, b: StoredEvaluation) -> None:
    known = registry.env_entry_points()
    ids = (e.played_env_id.removeprefix(f"{registry.NAMESPACE}/") for e in (a, b))
    first, second = (known.get(env_id, env_id) for env_id in ids)
    if first != second:
        raise ConfigError(
            f"{a.path} is of {a.env_id!r}, and {b.path} of {b.env_id!r}: only evaluations of one environment "
            "can be compared. Evaluate both models on the same --env"
        )


def _check_same_tasks(a: StoredEvaluation, b: StoredEvaluation, first: _Counted, second: _Counted) -> None:
    """By what was stored of them; else, by what the agents were told first."""
    if a.tasks is not None and b.tasks is not None:
        changed = changed_tasks(a.tasks, b.tasks)
    else:
        ids = _other_prompts(first, second)
        changed = [f"task {ids[0]!r} began with other messages, as {len(ids)} did"] if ids else []
    if changed:
        raise ConfigError(
            f"{a.path} and {b.path} played different tasks of the same id: {'; '.join(changed)}{_hint(a, b)}"
            ". Evaluate both with the same version of the environment, the same --seed and the same --split"
        )


def _hint(a: StoredEvaluation, b: StoredEvaluation) -> str:
    named = [
        f"{key} {a.settings.get(key)} -> {b.settings.get(key)}"
        for key in ("split", "seed")
        if a.settings.get(key) != b.settings.get(key)
    ]
    return f" ({', '.join(named)})" if named else ""


def _other_prompts(a: _Counted, b: _Counted) -> list[str]:
    def differ(one: _TaskSums, other: _TaskSums) -> bool:
        return one.prompt is not None and other.prompt is not None and one.prompt != other.prompt

    return [task for task, sums in a.tasks.items() if task in b.tasks and differ(sums, b.tasks[task])]


def _warnings(a: StoredEvaluation, b: StoredEvaluation, first: _Counted, second: _Counted) -> Iterable[str]:
    for evaluation in (a, b):
        if evaluation.report is None:
            yield f"{evaluation.path} is not complete"
    if changed := changed_settings(a.settings, b.settings):
        yield f"other settings: {'; '.join(changed)}"
    if a.tasks is None or b.tasks is None:
        yield "tasks were compared by their first messages alone: an older release stored no more of them"
    elif ids := _other_prompts(first, second):
        yield f"{len(ids)} tasks began with other messages, {ids[0]!r} among them: the prompt was changed"


def changed_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """`temperature: 0.0 -> 1.0` for each setting that differs and may change what is measured."""
    options = options_of(EvalConfig)

    def measured(settings: Mapping[str, Any]) -> dict[str, Any]:
        # A release that did not know a setting did what its default does.
        known = {n: o.default for n, o in options.items() if not o.required} | dict(settings)
        skipped = _EXPECTED | {n for n, o in options.items() if o.may_change}
        return {name: value for name, value in known.items() if name not in skipped}

    return differences(measured(a), measured(b))
