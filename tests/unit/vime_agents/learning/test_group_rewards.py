from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.vime_agents.episodes import make_episode
from vime_agents.episode import Episode
from vime_agents.learning.group_rewards import add_group_rewards
from vime_agents.reward import GroupReward


def rewards(episodes: Sequence[Episode]) -> list[float | None]:
    return [e.reward for e in episodes]


def longest_id(episodes: Sequence[Episode]) -> list[float]:
    """1 for the episode with the longest id of its group."""
    longest = max(len(e.id) for e in episodes)
    return [float(len(e.id) == longest) for e in episodes]


async def test_siblings_are_compared_with_each_other_and_with_nobody_else() -> None:
    episodes = [
        make_episode("a", "g", 0.5),
        make_episode("ccc", "h", 0.25),
        make_episode("bb", "g", 0.0),
        make_episode("d", "h", 1.0),
    ]
    found = await add_group_rewards(episodes, [GroupReward(function=longest_id, name="longest", weight=2.0)])
    assert [e.id for e in found] == ["a", "ccc", "bb", "d"]
    assert rewards(found) == [0.5, 2.25, 2.0, 1.0]
    result = found[1].trajectories[0].reward
    assert (result.components, result.weights) == ({"longest": 1.0}, {"longest": 2.0})
    assert rewards(episodes) == [0.5, 0.25, 0.0, 1.0]


async def test_episodes_without_a_trusted_reward_are_not_compared() -> None:
    seen = []

    async def look(episodes: Sequence[Episode]) -> list[float]:
        seen.append([e.id for e in episodes])
        return [1.0] * len(episodes)

    episodes = [
        make_episode("failed", reward=None, cause="engine"),
        make_episode("unscored", reward=None),
        make_episode("good", reward=0.5),
        make_episode("alone", "h", reward=None),
    ]
    found = await add_group_rewards(episodes, [GroupReward(function=look, name="look")])
    assert seen == [["good"]]
    assert rewards(found) == [None, None, 1.5, None]
    assert [found[n] is episodes[n] for n in range(4)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda episodes: [1.0], "GraderError: 1 values for 2 episodes"),
        (lambda episodes: [0.0, 1.5], r"GraderError: bad is 1.5, outside its declared range [0.0, 1.0]"),
        (lambda episodes: [0.0, None], "GraderError: bad must be a finite number, got None"),
        (lambda episodes: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
async def test_a_comparison_that_fails_costs_one_group_its_rewards(function, message: str) -> None:
    def compare(episodes: Sequence[Episode]) -> list[float]:
        return [0.0] if episodes[0].group_id == "h" else function(episodes)

    episodes = [make_episode("a"), make_episode("b"), make_episode("c", "h"), make_episode("f", cause="env")]
    found = await add_group_rewards(episodes, [GroupReward(function=compare, name="bad")])
    assert rewards(found) == [None, None, 1.0, 1.0]
    results = [e.trajectories[0].reward for e in found[:2]]
    assert {(r.status, r.detail) for r in results} == {("error", f"group reward bad: {message}")}


async def test_two_comparisons_add_up_and_need_two_names() -> None:
    one = GroupReward(function=longest_id, name="one")
    found = await add_group_rewards(
        [make_episode("a", reward=0.0)], [one, GroupReward(function=longest_id, name="two", weight=0.5)]
    )
    assert rewards(found) == [1.5]
    found = await add_group_rewards([make_episode("a", reward=0.0)], [one, one])
    assert found[0].trajectories[0].reward.detail.endswith("two components have the name 'one'")


async def test_an_agent_that_is_not_there_is_not_compared() -> None:
    episode = make_episode("a")
    component = GroupReward(function=longest_id, name="x", agent="other")
    assert (await add_group_rewards([episode], [component]))[0] is episode
