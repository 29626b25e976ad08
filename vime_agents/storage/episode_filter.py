"""Which of the stored episodes are wanted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from vime_agents.episode import Episode, messages_of
from vime_agents.errors import FAILURE_CLASSES, ConfigError, did_you_mean
from vime_agents.messages import Message
from vime_agents.storage.stored_episodes import StoredEpisode

STATUSES = ("ok", "truncated", "error", *(f"error:{name}" for name in FAILURE_CLASSES))
"""What an episode's status can be; `error` stands for all of its classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """What an episode must be: all of it. Where several agents have rewards, any one of them does."""

    failed: bool = False
    """It failed, or an agent has no reward that can be trusted."""
    status: str | None = None
    """One of STATUSES."""
    min_reward: float = -math.inf
    max_reward: float = math.inf
    task: str | None = None
    """Its task's id, in which `*` and `?` stand for other characters."""
    grep: re.Pattern[str] | None = None
    """Found in a message, a tool call, an error's text or the author's info."""

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:
            hint = did_you_mean(self.status, STATUSES, "{}")
            raise ConfigError(f"--status: must be one of {', '.join(STATUSES)}, got {self.status!r}.{hint}")
        if math.isnan(self.min_reward) or math.isnan(self.max_reward):
            raise ConfigError("--min-reward, --max-reward: must be numbers, got nan")
        if self.min_reward > self.max_reward:
            raise ConfigError(
                f"--min-reward {self.min_reward:g} is more than --max-reward {self.max_reward:g}: nothing is "
                "between them"
            )

    @property
    def keeps_everything(self) -> bool:
        """Whether nothing is asked."""
        return self == EpisodeFilter()

    def keeps(self, stored: StoredEpisode) -> bool:
        """Whether an episode is wanted."""
        episode = stored.episode
        return (
            (not self.failed or has_failed(episode))
            and (self.status is None or self.status in (episode.status, episode.status.partition(":")[0]))
            and self._keeps_reward(episode)
            and (self.task is None or fnmatchcase(episode.task_id, self.task))
            and (self.grep is None or any(self.grep.search(text) for text in _texts(episode)))
        )

    def _keeps_reward(self, episode: Episode) -> bool:
        if self.min_reward == -math.inf and self.max_reward == math.inf:
            return True
        rewards = (t.reward.value for t in episode.trajectories)
        return any(r is not None and self.min_reward <= r <= self.max_reward for r in rewards)


def has_failed(episode: Episode) -> bool:
    """Whether it failed, or an agent has no reward that can be trusted."""
    return episode.outcome.kind == "failed" or not all(t.reward.ok for t in episode.trajectories)


def _texts(episode: Episode) -> Iterator[str]:
    """All that somebody said, or that went wrong."""
    yield episode.outcome.detail
    for trajectory in episode.trajectories:
        yield trajectory.reward.detail
        for message in messages_of(trajectory):
            yield from _texts_of(message)
    if episode.info:
        yield json.dumps(episode.info, ensure_ascii=False)


def _texts_of(message: Message) -> Iterator[str]:
    yield message["content"]
    for call in message.get("tool_calls", ()):
        yield call["function"]["name"]
        yield call["function"]["arguments"]
