"""What a report says of the episodes that it counts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import Episode, Outcome, episode_from_json, episode_to_json
from vime_agents.evaluation.report import EvalReport, Tally


def calls_of(number: int, *seconds: float, agent: str = "agent") -> Episode:
    """An episode whose calls took so long."""
    episode = make_episode(f"e{number}", f"g{number}", num_turns=len(seconds))
    (trajectory,) = episode.trajectories
    turns = tuple(replace(turn, policy_s=s) for turn, s in zip(trajectory.turns, seconds, strict=True))
    return replace(episode, trajectories=(replace(trajectory, agent=agent, turns=turns),))


def report_on(tally: Tally) -> EvalReport:
    return tally.report(
        env_id="e", policy="p", split="test", seed=0, num_tasks=2, samples_per_task=1, duration_s=1.0
    )


def test_seconds_of_calls_are_those_of_the_stored_turns_whatever_their_order() -> None:
    # 21 calls of 1 to 21 s: the median is the 11th, and a share of 0.95 lies at the 20th.
    episodes = [calls_of(0, *map(float, range(21, 9, -1))), calls_of(1, *map(float, range(1, 10)))]
    live, resumed = Tally(), Tally()
    for episode in episodes:
        live.add(episode)
    for episode in reversed(episodes):
        resumed.add(episode_from_json(json.loads(json.dumps(episode_to_json(episode)))))
    assert (report_on(live).call_p50_s, report_on(live).call_p95_s) == (11.0, 20.0)
    assert report_on(resumed) == report_on(live)


def test_calls_of_others_are_not_the_evaluated_models() -> None:
    tally = Tally(opponents={"O"})
    own, other = calls_of(0, 1.0, agent="X"), calls_of(0, 50.0, agent="O")
    tally.add(replace(own, trajectories=(*own.trajectories, *other.trajectories)))
    assert report_on(tally).call_p95_s == 1.0


def test_answers_of_a_cache_are_counted_and_have_no_seconds() -> None:
    episode = calls_of(0, 0.001, 7.0)
    (trajectory,) = episode.trajectories
    turns = (replace(trajectory.turns[0], from_cache=True), trajectory.turns[1])
    live, resumed = Tally(), Tally()
    live.add(kept := replace(episode, trajectories=(replace(trajectory, turns=turns),)))
    resumed.add(episode_from_json(json.loads(json.dumps(episode_to_json(kept)))))
    assert (report_on(live).cache_hits, report_on(live).call_p50_s) == (1, 7.0)
    assert report_on(resumed) == report_on(live)


def test_without_a_call_there_are_no_seconds_and_json_says_null() -> None:
    report = report_on(Tally())
    assert math.isnan(report.call_p50_s)
    assert math.isnan(report.call_p95_s)
    assert report.to_dict()["call_p95_s"] is None
    assert report.truncated_share == 0.0


def test_the_share_of_truncated_episodes_is_of_all_that_were_played() -> None:
    tally = Tally()
    cut = replace(make_episode("e0"), outcome=Outcome(kind="truncated", stop="max_turns"))
    for episode in (
        cut,
        make_episode("e1"),
        make_episode("e2"),
        make_episode("e3", reward=None, cause="env"),
    ):
        tally.add(episode)
    assert report_on(tally).truncated_share == 0.25
