"""What an evaluated policy came to against each of its opponents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from vime_agents.episode import Episode
from vime_agents.evaluation.rating import Elo, Game, Rating, rate
from vime_agents.evaluation.statistics import mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class OpponentReport:
    """The episodes with one opponent, as the evaluated policy sees them."""

    n: int
    """Episodes played."""
    n_scored: int
    """Episodes in which all that it plays have a trusted reward."""
    mean: float
    """Mean reward of the evaluated policy; NaN when there is none."""
    ci_low: float
    """95 % interval of the mean, as of EvalReport."""
    ci_high: float
    won: int
    """Games of two in which it had more than the other."""
    drawn: int
    lost: int
    ahead: Elo | None = None
    """How much stronger it is; None where nothing tells strength from seat."""


@dataclass(slots=True)
class OpponentTally:
    """Counts the episodes of one evaluation, opponent by opponent."""

    opponents: Collection[str] = ()
    """Agents to whom others than the evaluated policy were given."""
    tallies: dict[str, _Tally] = field(default_factory=dict)
    games: list[Game] = field(default_factory=list)
    """Those of two with trusted rewards."""

    def add(self, episode: Episode) -> None:
        """Count one episode; one without an opponent says nothing."""
        others = [t for t in episode.trajectories if t.cast_as in self.opponents]
        own = [t for t in episode.trajectories if t.cast_as not in self.opponents]
        if not others or not own:
            return
        name = " + ".join(sorted({t.policy for t in others}))
        tally = self.tallies.setdefault(name, _Tally())
        rewards = [t.reward.value for t in own if t.reward.value is not None]
        tally.n += 1
        tally.n_scored += len(rewards) == len(own)
        tally.rewards.extend(rewards)
        tally.tasks.extend([episode.task_id] * len(rewards))
        theirs = [t.reward.value for t in others if t.reward.value is not None]
        if len(episode.trajectories) == 2 and rewards and theirs:
            score = 0.5 if rewards[0] == theirs[0] else float(rewards[0] > theirs[0])
            tally.scores[score] += 1
            first = episode.trajectories[0] is own[0]
            self.games.append(Game(opponent=name, first=first, score=score, task=episode.task_id))

    def report(self) -> tuple[dict[str, OpponentReport], Elo | None]:
        """(opponent -> what it came to, what the first seat is worth)."""
        rating = rate(self.games)
        return {name: tally.report(name, rating) for name, tally in sorted(self.tallies.items())}, (
            None if rating is None else rating.first_seat
        )

    def metrics(self) -> dict[str, float]:
        """`opponent/<name>/` reward, win_rate (a draw is half a win) and episodes: of a rollout."""
        found: dict[str, float] = {}
        for name, tally in sorted(self.tallies.items()):
            found[f"opponent/{name}/episodes"] = tally.n
            if tally.rewards:
                found[f"opponent/{name}/reward"] = math.fsum(tally.rewards) / len(tally.rewards)
            if games := tally.scores.total():
                won = math.fsum(score * count for score, count in tally.scores.items())
                found[f"opponent/{name}/win_rate"] = won / games
        return found


@dataclass(slots=True)
class _Tally:
    n: int = 0
    n_scored: int = 0
    rewards: list[float] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    scores: Counter[float] = field(default_factory=Counter)
    """1, 0.5 or 0 -> games."""

    def report(self, name: str, rating: Rating | None) -> OpponentReport:
        interval = mean_interval(self.rewards, self.tasks)
        return OpponentReport(
            n=self.n,
            n_scored=self.n_scored,
            mean=interval.mean,
            ci_low=interval.low,
            ci_high=interval.high,
            won=self.scores[1.0],
            drawn=self.scores[0.5],
            lost=self.scores[0.0],
            ahead=None if rating is None else rating.ahead_of.get(name),
        )
