"""Which episodes are games of two, and who won them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import Episode, RewardResult
from vime_agents.evaluation.opponents import OpponentTally


def episode(**rewards: float | None) -> Episode:
    """One agent for each reward; None: it has none that can be trusted."""
    played = make_episode("e", "t", 0.0)
    trajectories = [
        replace(
            played.trajectories[0],
            agent=agent,
            policy=f"plays-{agent}",
            reward=RewardResult(value=reward)
            if reward is not None
            else RewardResult(value=None, status="error"),
        )
        for agent, reward in rewards.items()
    ]
    return replace(played, trajectories=tuple(trajectories))


@pytest.mark.parametrize(
    ("rewards", "counted"),
    [
        ({"own": 1.0, "other": 0.0}, (1, 0, 0)),
        ({"own": 0.5, "other": 0.5}, (0, 1, 0)),
        ({"other": 1.0, "own": 0.0}, (0, 0, 1)),
        ({"own": None, "other": 0.0}, (0, 0, 0)),
        ({"own": 1.0, "other": None}, (0, 0, 0)),
        # Three played: that a reward is missing does not make it a game of two.
        ({"own": 1.0, "own_2": None, "other": 0.0}, (0, 0, 0)),
        ({"own": 1.0, "other": 0.0, "other_2": None}, (0, 0, 0)),
    ],
)
def test_games_of_two_are_won_drawn_or_lost(
    rewards: dict[str, float | None], counted: tuple[int, int, int]
) -> None:
    tally = OpponentTally({"other", "other_2"})
    tally.add(episode(**rewards))
    report = next(iter(tally.report()[0].values()))
    assert (report.won, report.drawn, report.lost) == counted
    assert report.n == 1
