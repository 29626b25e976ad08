"""One flat row for each episode."""

import json

from tests.unit.vime_agents.stored import game_episode, tool_episode, unstarted_episode
from vime_agents.storage.exports.rows import COLUMNS, TOKEN_COLUMNS, episode_row
from vime_agents.storage.stored_episodes import StoredEpisode


def row_of(episode, **options):
    return episode_row(StoredEpisode(number=1, source="rollout-000003", episode=episode), **options)


def test_a_tool_episode():
    row = row_of(tool_episode("4"))
    assert list(row) == list(COLUMNS)
    flat = {k: v for k, v in row.items() if not isinstance(v, list)}
    assert flat == {
        "source": "rollout-000003",
        "id": "tools",
        "env_id": "4",
        "task_id": "4",
        "group_id": "4",
        "seed": 7,
        "attempt": 0,
        "status": "truncated",
        "stop": "max_turns",
        "detail": "4",
        "reward": 0.75,
        "started_at": 1_700_000_000.5,
        "duration_s": 1.5,
        "num_turns": 2,
        "num_sampled_tokens": 6,
        "info": '{"4": ["4"]}',
    }
    assert row["weight_versions"] == [0]
    assert row["components"] == [
        {"agent": "agent", "name": "4", "value": 0.5, "weight": 1.5},
        {"agent": "agent", "name": "len", "value": 3.0, "weight": 0.0},
    ]
    assert row["metrics"] == [{"name": "tool_calls", "value": 1.0}]
    said = [(m["turn"], m["role"], m["name"], m["tool_call_id"]) for m in row["messages"]]
    assert said == [
        (0, "system", None, None),
        (0, "user", None, None),
        (0, "assistant", None, None),
        (1, "tool", "add4", "call-1"),
        (1, "assistant", None, None),
        (2, "user", None, None),
    ]
    assert row["messages"][2]["tool_calls"] == [
        {"id": "call-1", "type": "function", "function": {"name": "add4", "arguments": '{"a": 2}'}}
    ]


def test_tokens_come_with_the_mask_of_the_loss():
    row = row_of(tool_episode(), tokens=True)
    assert list(row) == [*COLUMNS, *TOKEN_COLUMNS]
    (segment,) = row["segments"]
    assert segment["token_ids"] == [10, 11, 20, 21, 22, 11, 11, 20, 21, 22]
    assert segment["logprobs"] == [None, None, -0.5, -1.0, -0.25, None, None, -0.5, -1.0, -0.25]
    assert segment["loss_mask"] == [False, False, True, True, True, False, False, True, True, True]


def test_a_game_has_no_reward_of_its_own_but_each_agents():
    row = row_of(game_episode())
    assert row["reward"] is None
    agents = [(a["agent"], a["reward"], a["stop"], a["frozen"]) for a in row["agents"]]
    assert agents == [("first", 1.0, "done", False), ("second", -1.0, "illegal_move", True)]
    assert [(m["agent"], m["role"]) for m in row["messages"]] == [
        ("first", "user"),
        ("first", "assistant"),
        ("second", "user"),
        ("second", "assistant"),
    ]


def test_an_episode_that_never_started_is_a_row_too():
    row = row_of(unstarted_episode())
    assert (row["status"], row["detail"], row["reward"]) == ("error:sandbox", "no space left", None)
    assert (row["agents"], row["messages"], row["num_sampled_tokens"]) == ([], [], None)
    json.dumps(row, allow_nan=False)
