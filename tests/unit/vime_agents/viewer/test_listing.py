"""A row for each episode, and their sum."""

from tests.unit.vime_agents.episodes import make_episode
from tests.unit.vime_agents.stored import game_episode, tool_episode, unstarted_episode
from vime_agents.storage.stored_episodes import StoredEpisode
from vime_agents.viewer.listing import Row, Totals, row_of


def row(episode) -> Row:
    return row_of(StoredEpisode(number=5, source="rollout-000001", episode=episode))


def test_the_row_of_an_episode():
    assert row(tool_episode("4")) == Row(
        number=5,
        source="rollout-000001",
        id="tools",
        task_id="4",
        status="truncated",
        stop="max_turns",
        reward=0.75,
        rewards="0.75",
        num_turns=2,
        num_sampled_tokens=6,
        failed=False,
    )


def test_a_game_shows_every_agents_reward_and_a_missing_one_is_no_zero():
    game = row(game_episode())
    assert (game.reward, game.rewards) == (None, "first 1, second -1")
    unscored = row(make_episode(reward=None))
    assert (unscored.reward, unscored.rewards, unscored.failed) == (None, "-", True)
    assert row(unstarted_episode()).rewards == ""


def test_totals_count_what_is_listed_out_of_what_there_is():
    totals = Totals(num_seen=9)
    for episode in (make_episode(reward=1.0), make_episode(reward=0.0), unstarted_episode()):
        totals.add(row(episode))
    assert str(totals) == "3 of 9 episodes, 1 failed; mean reward 0.5000 of 2"
    assert str(Totals()) == "0 episodes, 0 failed"
