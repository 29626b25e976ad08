from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

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


@pytest.mark.parametrize("make", SPACES)
def test_seed_and_sample_follow_gymnasiums_rules(make) -> None:
    space = make()
    assert space.seed(11) == make(seed=11).seed(11)
    first = [space.sample() for _ in range(5)]
    space.seed(11)
    assert [space.sample() for _ in range(5)] == first
    assert all(value in space for value in first)
    again = pickle.loads(pickle.dumps(space))  # its generator goes along
    assert [again.sample() for _ in range(5)] == [space.sample() for _ in range(5)]
    assert gymnasium.spaces.Dict({"x": space}) == gymnasium.spaces.Dict({"x": make(seed=3)})


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Reply(), "x" * 100_000),
        (Reply(), assistant("", [tool_call("f", "x" * 100_000, str(i)) for i in range(100)])),
        (Messages(), tuple(user("x" * 100_000) for _ in range(100))),
    ],
    ids=["text", "calls", "messages"],
)
def test_contains_does_not_read_the_text(space, value) -> None:
    """Then its cost does not depend on the length: no function is called once for each character."""
    calls = 0

    def count(frame, event, argument) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        contained = space.contains(value)
    finally:
        sys.setprofile(None)
    assert contained
    assert calls < 5_000


def test_samples_are_the_same_in_processes_with_other_hash_seeds() -> None:
    code = (
        "from vime_agents.spaces import Messages, Reply\n"
        "print([[s.sample() for _ in range(20)] for s in (Messages(seed=3), Reply(seed=3))])"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert len(printed[0]) > 500
