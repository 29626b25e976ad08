"""WordGuess: letters that occur twice are marked right, gold finds the word, garbage costs a guess."""

from __future__ import annotations

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from vime_envs.games.word_guess import WORDS, WordGuess, guessed, marks


@pytest.fixture
def env():
    made = WordGuess(split="test")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("guess", "word", "expected"),
    [
        ("crane", "crane", "GGGGG"),
        ("slate", "crane", "--G-G"),
        ("allow", "llama", "YGY--"),  # both l of the word, and one a
        ("eerie", "geese", "YG--G"),  # three e each, two of them in place
        ("geese", "these", "--GGG"),  # the first e has no e left
        ("speed", "erase", "Y-YY-"),
        ("speed", "steal", "G-G--"),  # the e in place takes the only one
        ("level", "hello", "YG--Y"),
        ("mummy", "metal", "G----"),
    ],
)
def test_a_letter_has_as_many_marks_as_the_word_has_of_it(guess: str, word: str, expected: str) -> None:
    assert marks(guess, word) == expected


def test_every_mark_of_every_pair_agrees_with_counting() -> None:
    for guess in WORDS[::9]:
        for word in WORDS[::7]:
            found = marks(guess, word)
            for position, letter in enumerate(guess):
                assert (found[position] == "G") == (word[position] == letter)
            for letter in set(guess):
                marked = sum(m != "-" for m, said in zip(found, guess, strict=True) if said == letter)
                assert marked == min(guess.count(letter), word.count(letter))


def test_splits_share_no_word_and_all_have_five_letters() -> None:
    words = {s: {t.inputs["word"] for t in WordGuess(split=s).task_set()} for s in ("train", "test")}
    assert words["train"].isdisjoint(words["test"])
    assert len(words["train"] | words["test"]) == len(WORDS) == len(set(WORDS)) > 200
    assert all(len(w) == 5 and w.isalpha() and w.islower() for w in WORDS)


def test_gold_wins_and_the_sixth_wrong_guess_is_the_last(env: WordGuess) -> None:
    env.reset(options={"task": 0})
    _, reward, terminated, _, info = env.step(f"It must be {env.gold().upper()}!")
    assert (reward, terminated, info["reward_result"].components["guesses"]) == (1.0, True, 1.0)
    env.reset(options={"task": 0})
    for _ in range(5):
        assert env.step("zzzzz")[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step("zzzzz")
    assert (reward, terminated, truncated, info["stop"]) == (0.0, False, True, "max_turns")


def test_a_guess_shows_its_marks_and_never_the_word(env: WordGuess) -> None:
    observation, _ = env.reset(options={"task": 1})
    assert env.task["word"] not in observation["messages"][0]["content"].lower()
    observation, *_ = env.step("crane")
    letters, found, left = observation["messages"][0]["content"].split("\n")
    assert letters == "C R A N E"
    assert found.replace(" ", "") == marks("crane", env.task["word"])
    assert left == "5 guesses are left."


@pytest.mark.parametrize(
    "reply", ["", "no idea", "four", "letters", "\x00", "\ud800", "x" * 100_000, "12345"]
)
def test_what_is_no_guess_costs_one_and_says_so(env: WordGuess, reply: str) -> None:
    env.reset(options={"task": 0})
    observation, reward, terminated, truncated, _ = env.step(reply)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert observation["messages"][0]["content"].startswith("That is no guess: ")
    assert env.counters == {"illegal_moves": 1}


def test_naming_every_word_is_one_guess_the_last(env: WordGuess) -> None:
    env.reset(options={"task": 0})
    everything = " ".join(w for w in WORDS if w != "zebra") + " zebra"
    assert env.step(everything)[1:4] == (0.0, False, False)
    assert guessed(everything) == "zebra"


def test_it_is_a_gymnasium_env_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make("vime_agents/WordGuess-v0")
        check_env(env.unwrapped)
        env.close()
