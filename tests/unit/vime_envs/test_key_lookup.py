"""KeyLookup: gold, wrong and hostile replies; disjoint splits; a real tool in a real sandbox."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents
from vime_envs.key_lookup import KeyLookup


def play(*replies: str, index: int = 0, split: str = "test") -> tuple[float, dict[str, Any], KeyLookup]:
    env = KeyLookup(split=split)
    try:
        env.reset(options={"task": index})
        for reply in replies:
            _, reward, terminated, truncated, info = env.step(reply)
            if terminated or truncated:
                break
        assert terminated or truncated
        return reward, info, env
    finally:
        env.close()


def gold(index: int = 0) -> list[str]:
    env = KeyLookup(split="test")
    env.reset(options={"task": index})
    replies = env.gold()
    env.close()
    return replies


def test_gold_scores_the_maximum_through_the_sandboxed_tool() -> None:
    reward, info, env = play(*gold())
    assert reward == 1.0
    assert info["stop"] == "done"
    assert info["reward_result"].components == {"call": 1, "answer": 1, "success": 1}
    (tool,) = [m for m in env.messages if m["role"] == "tool"]
    word, value = env.task["word"], env.task["table"][env.task["word"]]
    assert tool["content"] == f" = {value} =>"
    assert env.messages[0]["content"].endswith(f"\n{word} ->")


def test_the_right_call_with_a_wrong_answer_is_worth_three_tenths() -> None:
    call, answer = gold()
    other = f" {(int(answer) + 1) % 10}\n"
    assert play(call, other)[0] == pytest.approx(0.3)
    assert play(call, answer.rstrip("\n"))[0] == pytest.approx(0.3)
    assert play(call, call)[0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    "reply", ["", " 4\n", " get()", " get(a b)", " got(cat)", "get", "x" * 100_000, " get(\x00)", "\ud800"]
)
def test_what_is_no_call_ends_the_episode_with_nothing(reply: str) -> None:
    reward, info, _ = play(reply)
    assert (reward, info["stop"]) == (0.0, "done")


def test_another_word_is_looked_up_and_worth_nothing() -> None:
    _, answer = gold()
    reward, _, env = play(" get(zebra)", answer)
    assert reward == 0.0
    assert env.messages[2]["content"] == " = ? =>"


def test_each_turn_says_where_it_ends() -> None:
    env = KeyLookup()
    _, info = env.reset(seed=0)
    assert (info["stop_strings"], info["max_tokens"]) == ((")",), 8)
    *_, info = env.step(env.gold()[0])
    assert info["stop_strings"] == ("\n",)
    env.close()


def test_no_word_of_the_test_split_occurs_in_training() -> None:
    train, test = KeyLookup(split="train"), KeyLookup(split="test")
    assert not set(train.words) & set(test.words)
    assert (len(train.words), len(test.words)) == (84, 18)
    for env in (train, test):
        task = env.task_set()[7]
        assert {task.inputs["word"], *task.inputs["examples"]} <= set(env.words)
        assert task == type(env)(split=env.split).task_set()[7]


def test_it_is_a_gymnasium_env_without_a_warning() -> None:
    assert vime_agents.__version__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("vime_agents/KeyLookup-v0")
        check_env(env.unwrapped)
        env.close()
        assert env.spec is not None
        again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
        observation, _ = again.reset(seed=3)
        assert "->" in observation["messages"][0]["content"]
        again.close()
