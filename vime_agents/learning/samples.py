"""Episodes -> Batch. The one place where a mask bit, an advantage and a weight are decided.

Rules
- A trajectory enters its group's baseline and the loss when its episode was not failed and its reward is
  trusted; a failed or unscored one enters neither, is counted, and never becomes a zero.
- Baselines are over the trajectories of one (group, agent), each counted once; groups of one are dropped.
- Trainable tokens are exactly the trainable spans of the record. The advantage is broadcast to them.
- Weights are taken over all trajectories that enter the loss. Rows whose advantage is 0 everywhere are then
  left out of the batch (they would add nothing), without changing anybody's weight.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vime_agents.episode import Episode, Segment, Trajectory
from vime_agents.errors import RecordError
from vime_agents.learning.advantages import Estimator
from vime_agents.learning.aggregation import loss_weights
from vime_agents.trainer import Batch, TrainingSample


@dataclass(slots=True)
class _Row:
    episode: Episode
    trajectory: Trajectory
    index: int
    segment: Segment
    advantage: float


@dataclass(slots=True)
class _Tally:
    """What was left out, and why."""

    dropped: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    num_groups: int = 0
    num_zero_groups: int = 0


def build_batch(
    episodes: Sequence[Episode],
    *,
    estimator: Estimator,
    aggregation: str = "token-mean",
    temperature: float,
    keep_zero_advantage: bool = False,
) -> Batch:
    """Turn the episodes of one rollout into what one update consumes.

    Args:
        episodes: complete groups; their order does not matter.
        estimator: rewards of one group -> advantages.
        aggregation: see `vime_agents.learning.aggregation`.
        temperature: at which the episodes were sampled.
        keep_zero_advantage: keep rows that only matter for KL or entropy terms.

    Raises:
        RecordError: the same episode twice, or a trajectory that was played without exact tokens.
    """
    _refuse_duplicates(episodes)
    tally = _Tally()
    rows: list[_Row] = []
    for members in _groups(episodes, tally).values():
        rows.extend(_advantage_rows(members, estimator, tally))
    weights = loss_weights(
        [r.segment.loss_mask for r in rows], [(r.episode.id, r.trajectory.agent) for r in rows], aggregation
    )
    samples = tuple(
        _sample(row, weight)
        for row, weight in zip(rows, weights, strict=True)
        if row.segment.loss_mask.any() and (row.advantage or keep_zero_advantage)
    )
    return Batch(samples=samples, temperature=temperature, metrics=_metrics(episodes, rows, samples, tally))


def _refuse_duplicates(episodes: Sequence[Episode]) -> None:
    for episode_id, count in Counter(e.id for e in episodes).items():
        if count > 1:
            raise RecordError(f"episode {episode_id!r} occurs {count} times in one rollout")


def _groups(
    episodes: Sequence[Episode], tally: _Tally
) -> dict[tuple[str, str], list[tuple[Episode, Trajectory]]]:
    groups: dict[tuple[str, str], list[tuple[Episode, Trajectory]]] = defaultdict(list)
    for episode in sorted(episodes, key=lambda e: e.id):
        if episode.outcome.kind == "failed":
            tally.dropped[f"failed:{episode.outcome.cause}"] += 1
            continue
        for trajectory in episode.trajectories:
            if not trajectory.reward.ok:
                tally.dropped[f"reward:{trajectory.reward.status}"] += 1
            elif not trajectory.segments:
                raise RecordError(f"episode {episode.id}: {trajectory.policy!r} gave no exact tokens")
            else:
                groups[episode.group_id, trajectory.agent].append((episode, trajectory))
    return groups


def _advantage_rows(
    members: Sequence[tuple[Episode, Trajectory]], estimator: Estimator, tally: _Tally
) -> list[_Row]:
    if len(members) < 2:
        tally.dropped["group:singleton"] += len(members)
        return []
    rewards = [t.reward.value for _, t in members if t.reward.value is not None]
    advantages = estimator(rewards)
    if advantages.shape != (len(members),) or not np.isfinite(advantages).all():
        raise RecordError(f"advantages of group {members[0][0].group_id!r}: {advantages!r}")
    tally.rewards.extend(rewards)
    tally.num_groups += 1
    tally.num_zero_groups += not advantages.any()
    return [
        _Row(episode, trajectory, index, segment, float(advantage))
        for (episode, trajectory), advantage in zip(members, advantages, strict=True)
        for index, segment in enumerate(trajectory.segments)
    ]


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
        advantages=np.where(mask, np.float32(row.advantage), np.float32(0)),
        weights=weight,
        weight_versions=versions,
    )


def _metrics(
    episodes: Sequence[Episode], rows: Sequence[_Row], samples: Sequence[TrainingSample], tally: _Tally
) -> dict[str, float]:
    trajectories = [t for e in episodes for t in e.trajectories]
    sampled = sum(t.num_sampled_tokens for t in trajectories)
    recorded = sum(int(s.loss_mask.sum()) for t in trajectories for s in t.segments)
    metrics = {
        "reward_mean": float(np.mean(tally.rewards)) if tally.rewards else float("nan"),
        "reward_std": float(np.std(tally.rewards)) if tally.rewards else float("nan"),
        "episodes": len(episodes),
        "groups": tally.num_groups,
        "groups_zero_advantage": tally.num_zero_groups,
        "episodes_truncated": sum(e.outcome.kind == "truncated" for e in episodes),
        "turns_mean": float(np.mean([len(t.turns) for t in trajectories])) if trajectories else 0.0,
        "rows": len(rows),
        "rows_trained": len(samples),
        "forks": sum(t.num_forks for t in trajectories),
        "tokens_sampled": sampled,
        "tokens_lost_to_drift": sampled - recorded,
        "tokens_trained": sum(int(s.loss_mask.sum()) for s in samples),
        "tokens_in_rows": sum(len(s) for s in samples),
    }
    metrics |= {f"dropped/{reason}": count for reason, count in sorted(tally.dropped.items())}
    return {name: float(value) for name, value in metrics.items()}
