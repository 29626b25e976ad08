"""GuessNumber: halving finds it, garbage costs a guess, and the hints do not lie."""

from __future__ import annotations

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from vime_envs.games.guess_number import GuessNumber


def test_each_number_is_in_one_split() -> None:
    sets = {split: GuessNumber(split=split).task_set() for split in ("train", "test")}
    numbers = {split: [tasks[i].inputs["number"] for i in range(len(tasks))] for split, tasks in sets.items()}
    assert sorted(numbers["train"] + numbers["test"]) == list(range(1, 101))
    assert 10 <= len(numbers["test"]) <= 30


@pytest.fixture
def env():
    made = GuessNumber(split="test")
    yield made
    made.close()


def test_halving_finds_every_number_in_seven_guesses(env: GuessNumber) -> None:
    for task in range(len(env.task_set())):
        env.reset(options={"task": task})
        low, high, done = 1, 100, False
        while not done:
            guess = (low + high) // 2
            observation, reward, terminated, truncated, info = env.step(f"My guess is {guess}.")
            done = terminated or truncated
            if not done:
                higher = "higher" in observation["messages"][0]["content"]
                assert higher == (guess < env.task["number"])
                low, high = (guess + 1, high) if higher else (low, guess - 1)
        assert (reward, info["stop"]) == (1.0, "done")
        assert info["reward_result"].components["guesses"] == env.turn <= 7


def test_gold_is_the_number_and_the_seventh_wrong_guess_is_the_last(env: GuessNumber) -> None:
    env.reset(options={"task": 0})
    assert env.step(env.gold())[1:4] == (1.0, True, False)
    env.reset(options={"task": 0})
    wrong = str(1 + env.task["number"] % 100)
    for _ in range(6):
        assert env.step(wrong)[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step(wrong)
    assert (reward, terminated, truncated, info["stop"]) == (0.0, False, True, "max_turns")


@pytest.mark.parametrize("reply", ["", "I do not know", "0", "101", "12.5", "\x00", "\ud800", "7" * 100_000])
def test_what_is_no_guess_costs_one_and_says_so(env: GuessNumber, reply: str) -> None:
    env.reset(options={"task": 0})
    observation, reward, terminated, truncated, _ = env.step(reply)
    assert (reward, terminated, truncated) == (0.0, False, False)
    text = observation["messages"][0]["content"]
    assert text.startswith("That is no guess: ")
    assert text.endswith("6 guesses are left.")
    assert env.counters == {"illegal_moves": 1}


def test_it_is_a_gymnasium_env_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("vime_agents/GuessNumber-v0")
        check_env(env.unwrapped)
        env.close()
