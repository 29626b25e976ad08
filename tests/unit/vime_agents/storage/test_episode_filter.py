"""Which episodes a filter keeps."""

import re
from dataclasses import replace

import pytest

from tests.unit.vime_agents.episodes import make_episode
from tests.unit.vime_agents.stored import game_episode, tool_episode, unstarted_episode
from vime_agents.errors import ConfigError
from vime_agents.storage.episode_filter import EpisodeFilter
from vime_agents.storage.stored_episodes import StoredEpisode

EPISODES = [
    make_episode("good", reward=1.0),
    make_episode("bad", reward=0.0),
    make_episode("unscored", reward=None),
    make_episode("broken", reward=None, cause="tool"),
    tool_episode(text="four"),
    game_episode(),
    unstarted_episode(),
]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({}, ["good", "bad", "unscored", "broken", "tools", "game", "unstarted"]),
        ({"failed": True}, ["unscored", "broken", "unstarted"]),
        ({"status": "error"}, ["broken", "unstarted"]),
        ({"status": "error:tool"}, ["broken"]),
        ({"status": "truncated"}, ["tools"]),
        ({"failed": True, "status": "ok"}, ["unscored"]),
        ({"min_reward": 1.0}, ["good", "game"]),
        ({"max_reward": 0.0}, ["bad", "game"]),
        ({"min_reward": 0.5, "max_reward": 0.9}, ["tools"]),
        ({"task": "fo*"}, ["tools"]),
        ({"task": "f"}, []),
        ({"grep": re.compile("^add")}, ["tools"]),
        ({"grep": re.compile('"a": 2')}, ["tools"]),
        ({"grep": re.compile("no space")}, ["unstarted"]),
        ({"grep": re.compile(r"\[\"four\"\]")}, ["tools"]),
    ],
)
def test_an_episode_must_be_all_that_is_asked(wanted, ids):
    episode_filter = EpisodeFilter(**wanted)
    stored = [StoredEpisode(number=1, source="episodes", episode=e) for e in EPISODES]
    assert [s.episode.id for s in stored if episode_filter.keeps(s)] == ids
    assert episode_filter.keeps_everything == (not wanted)


def test_what_the_env_said_last_is_searched_too():
    (trajectory,) = make_episode().trajectories
    last = ({"role": "user", "content": "the needle"},)
    episode = replace(make_episode(), trajectories=(replace(trajectory, final_messages=last),))
    stored = StoredEpisode(number=1, source="episodes", episode=episode)
    assert EpisodeFilter(grep=re.compile("needle")).keeps(stored)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"status": "eror"}, r"--status: must be one of ok, .*, got 'eror'\. Did you mean error\?"),
        ({"min_reward": 2.0, "max_reward": 1.0}, "--min-reward 2 is more than --max-reward 1"),
        ({"min_reward": float("nan")}, "must be numbers"),
    ],
)
def test_what_cannot_be_is_an_error(wanted, told):
    with pytest.raises(ConfigError, match=told):
        EpisodeFilter(**wanted)
