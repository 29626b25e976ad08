"""Episodes -> Batches. The one place where a mask bit, an advantage and a weight are decided.

Rules
- A trajectory enters its group's baseline and the loss when its episode was not failed and its reward is
  trusted; a failed or unscored one enters neither, is counted, and never becomes a zero. Nor does that of an
  agent whose turn never came: there is nothing to learn from.
- A trajectory of a frozen policy (an opponent's) enters neither, and is not looked at.
- Baselines are over the trajectories of one (group, agent), or of one (episode, role) where the env says so
  (`Trajectory.peers`), each counted once; groups of one are dropped, unless the estimator compares nothing
  with others of the group.
- Trainable tokens are exactly the trainable spans of the record. How the advantage reaches them: `Credit`.
- A rollout may be cut into several optimizer steps, by whole groups. Advantages are those of the rollout,
  weights those of the step.
- Weights are taken over all trajectories that enter the step's loss. Rows whose advantage is 0 everywhere are
  then left out of the batch (they would add nothing), without changing anybody's weight.
- A length penalty is part of the reward that is learned from, and not of the one that is reported.
- The overlong filter takes episodes that ran into a limit of tokens out of the loss, numerator and
  denominator alike, and leaves them in the baseline.
- A row that is too long for the trainer is cut before credit is given, or left out after: `RowLimit`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vime_agents.episode import Episode, Segment, Trajectory
from vime_agents.errors import RecordError
from vime_agents.learning.advantages import GRPO_EPSILON, Estimator, RoleBaselines, compares_nothing, whiten
from vime_agents.learning.aggregation import loss_weights
from vime_agents.learning.credit import (
    Credit,
    CriticEstimator,
    RowKey,
    critic_advantages,
    group_advantages,
)
from vime_agents.learning.row_limit import RowLimit, truncated
from vime_agents.reward import with_component
from vime_agents.trainer import Batch, TrainingSample

OVERLONG_STOPS = ("max_tokens", "context_length")
"""Limits of tokens; time-outs and turn limits are not among them: a policy must not learn to loop."""

LENGTH_PENALTY = "length_penalty"
"""Name of that component of a reward, and of the metric: its mean."""

_BROADCAST = Credit()


@dataclass(slots=True)
class _Row:
    episode: Episode
    trajectory: Trajectory
    index: int
    segment: Segment
    advantages: NDArray[np.float64]
    """[num_tokens]"""
    values: NDArray[np.floating] | None = None
    """[num_tokens] a critic's, and what it is to learn; None: there is no critic."""
    returns: NDArray[np.floating] | None = None


@dataclass(slots=True)
class _Tally:
    """What was left out, and why."""

    dropped: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    """With the length penalties."""
    penalties: list[float] = field(default_factory=list)
    """What each of the rewards has of them."""
    num_groups: int = 0
    group_sizes: Counter[int] = field(default_factory=Counter)
    num_zero_groups: int = 0
    num_oversized_rows: int = 0
    num_oversized_tokens: int = 0
    """Trainable tokens that the row limit took out of the loss."""


def build_batches(
    episodes: Sequence[Episode],
    *,
    num_steps: int = 1,
    estimator: Estimator | RoleBaselines,
    credit: Credit = _BROADCAST,
    whitened: bool = False,
    batch_scaled: bool = False,
    aggregation: str = "token-mean",
    norm_length: int | None = None,
    length_penalty: Callable[[int], float] | None = None,
    overlong_filter: bool = False,
    row_limit: RowLimit | None = None,
    temperature: float,
    keep_zero_advantage: bool = False,
) -> list[Batch]:
    """Turn the episodes of one rollout into what its optimizer steps consume, one batch each.

    Args:
        episodes: complete groups; their order does not matter.
        num_steps: optimizer steps. The groups that are left are shared out evenly; a step that gets none has
            an empty batch.
        estimator: rewards of one group -> advantages; or a critic's values; or the baselines of roles, which
            move, in the order of the episodes' ids.
        credit: how much of the rewards each token answers for.
        whitened: give the advantages of all trainable tokens mean 0 and variance 1.
        batch_scaled: divide the advantages by the standard deviation of all rewards of the rollout.
        aggregation: see `vime_agents.learning.aggregation`.
        norm_length: of the aggregation seq-mean-token-sum-norm.
        length_penalty: tokens that an agent sampled in an episode -> what is added to its reward.
        overlong_filter: keep episodes that ran into a limit of tokens out of the loss.
        row_limit: what happens to rows that are too long for the trainer.
        temperature: at which the episodes were sampled.
        keep_zero_advantage: keep rows that only matter for KL or entropy terms.

    Raises:
        RecordError: the same episode twice, or a trajectory that was played without exact tokens.
        ConfigError: settings that do not go together, or an estimator that returns no advantages.
    """
    _refuse_duplicates(episodes)
    tally = _Tally()
    rows: list[_Row] = []
    for members in _groups(episodes, tally).values():
        if length_penalty is not None:
            members = [(e, _penalised(t, length_penalty)) for e, t in members]
        if row_limit is not None and row_limit.on_excess == "truncate":
            members = _truncated(members, row_limit, tally)
        rows.extend(_advantage_rows(members, estimator, credit, tally))
    if batch_scaled:
        scale = float(np.std(tally.rewards, ddof=1)) + GRPO_EPSILON if len(tally.rewards) > 1 else 1.0
        for row in rows:
            row.advantages = row.advantages / scale
    if overlong_filter:
        rows = _without_overlong(rows, tally)
    if row_limit is not None and row_limit.on_excess == "drop":
        rows = _without_oversized(rows, row_limit, tally)
    masks = [r.segment.loss_mask for r in rows]
    if whitened:
        for row, advantages in zip(rows, whiten([r.advantages for r in rows], masks), strict=True):
            row.advantages = advantages
    # Of an advantage of 0, the critic still learns.
    keep_zero_advantage = keep_zero_advantage or isinstance(estimator, CriticEstimator)
    steps = []
    for part in _split_by_group(rows, num_steps):
        weights = loss_weights(
            [r.segment.loss_mask for r in part],
            [(r.episode.id, r.trajectory.agent) for r in part],
            aggregation,
            group_ids=[r.episode.group_id for r in part],
            norm_length=norm_length,
        )
        samples = tuple(
            _sample(row, weight)
            for row, weight in zip(part, weights, strict=True)
            if row.segment.loss_mask.any() and (row.advantages.any() or keep_zero_advantage)
        )
        steps.append(samples)
    metrics = _metrics(episodes, rows, [sample for samples in steps for sample in samples], tally)
    return [Batch(samples=samples, temperature=temperature, metrics=metrics) for samples in steps]


def rows_to_value(episodes: Sequence[Episode]) -> dict[RowKey, Segment]:
    """The rows whose values `CriticEstimator` reads: those with trainable tokens and a trusted reward."""
    return {
        (episode.id, trajectory.agent, index): segment
        for members in _groups(episodes, _Tally()).values()
        for episode, trajectory in members
        for index, segment in enumerate(trajectory.segments)
        if segment.loss_mask.any()
    }


def build_batch(episodes: Sequence[Episode], **settings: Any) -> Batch:
    """The only batch of a rollout that is one optimizer step; arguments as `build_batches` takes them."""
    (batch,) = build_batches(episodes, **settings)
    return batch


def _split_by_group(rows: Sequence[_Row], num_steps: int) -> list[list[_Row]]:
    """Rows of a group stay together: all its agents', too."""
    ids = list(dict.fromkeys(r.episode.group_id for r in rows))
    step_of = {
        group_id: step
        for step, part in enumerate(np.array_split(np.arange(len(ids)), num_steps))
        for group_id in (ids[i] for i in part)
    }
    steps: list[list[_Row]] = [[] for _ in range(num_steps)]
    for row in rows:
        steps[step_of[row.episode.group_id]].append(row)
    return steps


def _refuse_duplicates(episodes: Sequence[Episode]) -> None:
    for episode_id, count in Counter(e.id for e in episodes).items():
        if count > 1:
            raise RecordError(f"episode {episode_id!r} occurs {count} times in one rollout")


def _groups(
    episodes: Sequence[Episode], tally: _Tally
) -> dict[tuple[str, ...], list[tuple[Episode, Trajectory]]]:
    groups: dict[tuple[str, ...], list[tuple[Episode, Trajectory]]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda e: e.id):
        if episode.outcome.kind == "failed":
            tally.dropped[f"failed:{episode.outcome.cause}"] += 1
            continue
        trained = [t for t in episode.trajectories if not t.frozen]
        if not trained:
            raise RecordError(f"episode {episode.id}: none of its agents is played by a trained policy")
        for trajectory in trained:
            if not trajectory.reward.ok:
                tally.dropped[f"reward:{trajectory.reward.status}"] += 1
            elif not trajectory.turns:  # the others ended the game before it was this agent's turn
                tally.dropped["never_acted"] += 1
            elif not trajectory.segments:
                raise RecordError(f"episode {episode.id}: {trajectory.policy!r} gave no exact tokens")
            else:
                group = (episode.group_id, trajectory.agent)
                if trajectory.peers:
                    group = (episode.group_id, episode.id, trajectory.peers)
                groups[group].append((episode, trajectory))
    return groups


def _advantage_rows(
    members: Sequence[tuple[Episode, Trajectory]],
    estimator: Estimator | RoleBaselines,
    credit: Credit,
    tally: _Tally,
) -> list[_Row]:
    if isinstance(estimator, RoleBaselines):
        estimator = estimator.of(members[0][1].peers or members[0][1].agent)
    if len(members) < 2 and not compares_nothing(estimator):
        tally.dropped["group:singleton"] += len(members)
        return []
    if isinstance(estimator, CriticEstimator):
        rows = [row for member in members for row in _critic_rows(*member, estimator, credit)]
    else:
        found = group_advantages([t for _, t in members], estimator, credit)
        rows = [
            _Row(episode, trajectory, index, trajectory.segments[index], advantages)
            for (episode, trajectory), parts in zip(members, found, strict=True)
            for index, advantages in enumerate(parts)
        ]
    tally.rewards.extend(t.reward.value for _, t in members if t.reward.value is not None)
    tally.penalties.extend(t.reward.components.get(LENGTH_PENALTY, 0.0) for _, t in members)
    tally.num_groups += 1
    tally.group_sizes[len(members)] += 1
    tally.num_zero_groups += not any(row.advantages.any() for row in rows)
    return rows


def _critic_rows(
    episode: Episode, trajectory: Trajectory, estimator: CriticEstimator, credit: Credit
) -> list[_Row]:
    unread = [np.zeros(len(s) + 1) for s in trajectory.segments]
    keys = [(episode.id, trajectory.agent, index) for index in range(len(unread))]
    values = [estimator.values.get(key, zeros) for key, zeros in zip(keys, unread, strict=True)]
    for key, segment, found in zip(keys, trajectory.segments, values, strict=True):
        if segment.loss_mask.any() and key not in estimator.values:
            raise RecordError(
                f"episode {key[0]}, agent {key[1]}: the critic says nothing of its row {key[2]}"
            )
        if found.shape != (len(segment) + 1,):
            raise RecordError(f"episode {key[0]}: {found.shape} values of a row of {len(segment)} tokens")
    ended = trajectory.outcome or episode.outcome
    advantages, returns = critic_advantages(
        trajectory,
        values,
        credit,
        lambd=estimator.lambd,
        truncated=estimator.bootstrap_truncated and ended.kind == "truncated",
    )
    return [
        _Row(episode, trajectory, index, segment, advantages[index], values[index][:-1], returns[index])
        for index, segment in enumerate(trajectory.segments)
    ]


def _penalised(trajectory: Trajectory, penalty: Callable[[int], float]) -> Trajectory:
    found = penalty(trajectory.num_sampled_tokens)
    return replace(trajectory, reward=with_component(trajectory.reward, LENGTH_PENALTY, found))


def _without_overlong(rows: Sequence[_Row], tally: _Tally) -> list[_Row]:
    overlong = {
        (r.episode.id, r.trajectory.agent)
        for r in rows
        if (r.trajectory.outcome or r.episode.outcome).stop in OVERLONG_STOPS
    }
    tally.dropped["overlong"] += len(overlong)
    return [r for r in rows if (r.episode.id, r.trajectory.agent) not in overlong]


def _truncated(
    members: Sequence[tuple[Episode, Trajectory]], limit: RowLimit, tally: _Tally
) -> list[tuple[Episode, Trajectory]]:
    for _, trajectory in members:
        _count_oversized(trajectory.segments, limit, tally)
    return [(episode, truncated(trajectory, limit)) for episode, trajectory in members]


def _without_oversized(rows: Sequence[_Row], limit: RowLimit, tally: _Tally) -> list[_Row]:
    _count_oversized([r.segment for r in rows], limit, tally)
    return [r for r in rows if not limit.exceeded_by(r.segment)]


def _count_oversized(segments: Sequence[Segment], limit: RowLimit, tally: _Tally) -> None:
    for segment in segments:
        if limit.exceeded_by(segment):
            tally.num_oversized_rows += 1
            tally.num_oversized_tokens += limit.num_lost(segment)


def _sample(row: _Row, weight: np.ndarray) -> TrainingSample:
    mask = row.segment.loss_mask
    versions = np.full(len(row.segment), -1, np.int32)
    for span in row.segment.spans:
        if span.source == "sampled" and span.weight_version is not None:
            versions[span.start : span.end] = span.weight_version
    return TrainingSample(
        id=f"{row.episode.id}/{row.trajectory.agent}/{row.index}",
        episode_id=row.episode.id,
        group_id=row.episode.group_id,
        agent=row.trajectory.agent,
        token_ids=row.segment.token_ids,
        loss_mask=mask,
        rollout_logprobs=row.segment.logprobs,
        advantages=row.advantages.astype(np.float32),
        weights=weight,
        weight_versions=versions,
        values=None if row.values is None else row.values.astype(np.float32),
        returns=None if row.returns is None else row.returns.astype(np.float32),
    )


def _metrics(
    episodes: Sequence[Episode], rows: Sequence[_Row], samples: Sequence[TrainingSample], tally: _Tally
) -> dict[str, float]:
    trajectories = [t for e in episodes for t in e.trajectories if not t.frozen]
    sampled = sum(t.num_sampled_tokens for t in trajectories)
    recorded = sum(int(s.loss_mask.sum()) for t in trajectories for s in t.segments)
    rewards = np.subtract(tally.rewards, tally.penalties)
    played = {(r.episode.id, r.trajectory.agent) for r in rows}
    metrics = {
        "reward_mean": float(np.mean(rewards)) if tally.rewards else float("nan"),
        "reward_std": float(np.std(rewards)) if tally.rewards else float("nan"),
        "episodes": len(episodes),
        "groups": tally.num_groups,
        "groups_zero_advantage": tally.num_zero_groups,
        "episodes_truncated": sum(e.outcome.kind == "truncated" for e in episodes),
        "turns_mean": float(np.mean([len(t.turns) for t in trajectories])) if trajectories else 0.0,
        "zero_advantage_share": tally.num_zero_groups / tally.num_groups if tally.num_groups else 0.0,
        "rows": len(rows),
        "rows_per_episode": len(rows) / len(played) if played else 0.0,
        "rows_trained": len(samples),
        "forks": sum(t.num_forks for t in trajectories),
        "tokens_sampled": sampled,
        "tokens_lost_to_drift": sampled - recorded,
        "rows_oversized": tally.num_oversized_rows,
        "tokens_lost_to_row_limit": tally.num_oversized_tokens,
        "tokens_trained": sum(int(s.loss_mask.sum()) for s in samples),
        "tokens_in_rows": sum(len(s) for s in samples),
    }
    if any(tally.penalties):
        metrics[LENGTH_PENALTY] = float(np.mean(tally.penalties))
    metrics |= {f"group_size/{size}": count for size, count in sorted(tally.group_sizes.items())}
    metrics |= {f"dropped/{reason}": count for reason, count in sorted(tally.dropped.items())}
    return {name: float(value) for name, value in metrics.items()}
