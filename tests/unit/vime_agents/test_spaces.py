from __future__ import annotations

import json
import pickle

import gymnasium
import pytest

from vime_agents.messages import assistant, tool_call, user
from vime_agents.spaces import Messages, Reply

SPACES = [Messages, Reply]


@pytest.mark.parametrize("make", SPACES)
def test_samples_are_members_and_depend_on_the_seed_alone(make) -> None:
    first, second, other = make(seed=3), make(seed=3), make(seed=4)
    samples = [first.sample() for _ in range(50)]
    assert all(first.contains(s) for s in samples)
    assert samples == [second.sample() for _ in range(50)]
    assert samples != [other.sample() for _ in range(50)]


@pytest.mark.parametrize("make", SPACES)
def test_samples_survive_json_and_spaces_survive_pickle(make) -> None:
    space = make(seed=0)
    samples = [space.sample() for _ in range(20)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples
    assert pickle.loads(pickle.dumps(space)) == space
    assert space != gymnasium.spaces.Discrete(2)
    assert space.is_np_flattenable is False


@pytest.mark.parametrize(
    ("value", "member"),
    [
        ((), True),
        ((user("a"), user("b")), True),
        ([user("a")], True),
        (user("a"), False),
        ("text", False),
        (({"role": "robot", "content": "a"},), False),
        (({"role": "user", "content": None},), False),
        (None, False),
    ],
)
def test_messages_are_sequences_of_valid_messages(value, member: bool) -> None:
    assert Messages().contains(value) is member


@pytest.mark.parametrize(
    ("value", "member"),
    [
        ("", True),
        ("text\0\ud800", True),
        (assistant("a"), True),
        (assistant("", [tool_call("f", {}, "1")]), True),
        (user("a"), False),
        (("a",), False),
        (b"a", False),
        (None, False),
        (3, False),
    ],
)
def test_a_reply_is_text_or_an_assistant_message(value, member: bool) -> None:
    assert Reply().contains(value) is member
