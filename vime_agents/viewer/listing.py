"""Episodes -> a row each, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from vime_agents.episode import Episode
from vime_agents.storage.episode_filter import has_failed
from vime_agents.storage.exports.rows import num_sampled
from vime_agents.storage.stored_episodes import StoredEpisode


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the list shows of an episode."""

    number: int
    source: str
    id: str
    task_id: str
    status: str
    stop: str
    reward: float | None
    """None: none to be trusted, or several agents' own."""
    rewards: str
    """In words, of all agents."""
    num_turns: int
    num_sampled_tokens: int | None
    failed: bool


def row_of(stored: StoredEpisode) -> Row:
    """The row of an episode."""
    episode = stored.episode
    return Row(
        number=stored.number,
        source=stored.source,
        id=episode.id,
        task_id=episode.task_id,
        status=episode.status,
        stop=episode.outcome.stop,
        reward=episode.reward,
        rewards=_rewards(episode),
        num_turns=sum(len(t.turns) for t in episode.trajectories),
        num_sampled_tokens=num_sampled(episode.trajectories),
        failed=has_failed(episode),
    )


def _rewards(episode: Episode) -> str:
    several = len(episode.trajectories) > 1
    return ", ".join(
        f"{f'{t.agent} ' if several else ''}{'-' if t.reward.value is None else f'{t.reward.value:g}'}"
        for t in episode.trajectories
    )


@dataclass(slots=True)
class Totals:
    """What the listed episodes come to."""

    num_seen: int = 0
    """Those that were not listed as well."""
    num_listed: int = 0
    num_failed: int = 0
    _rewards: list[float] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """One more is listed."""
        self.num_listed += 1
        self.num_failed += row.failed
        if row.reward is not None:
            self._rewards.append(row.reward)

    def __str__(self) -> str:
        of_all = "" if self.num_listed == self.num_seen else f" of {self.num_seen}"
        episodes = "episode" if self.num_seen == 1 else "episodes"
        text = f"{self.num_listed}{of_all} {episodes}, {self.num_failed} failed"
        if not self._rewards:
            return text
        mean = sum(self._rewards) / len(self._rewards)
        return f"{text}; mean reward {mean:.4f} of {len(self._rewards)}"
