"""WordProblems: every template solved again from its text; gold, wrong and hostile replies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents  # noqa: F401 - registers the ids
from vime_envs.word_problems import WordProblems

# Template -> the answer, from the numbers in the order in which the text has them.
SOLVERS: dict[str, Callable[..., float | Decimal]] = {
    "gives_away": lambda boxes, each, given: boxes * each - given,
    "shares": lambda total, kept, friends: (total - kept) / friends,
    "change": lambda price, pieces, note, _example: note - pieces * price,
    "travels": lambda h1, v1, h2, v2: h1 * v1 + h2 * v2,
    "grows_older": lambda age, times, years: (age * times + years) + (age * times - age),
    "fence": lambda length, width, gate, _one, metre: (length + length + width + width - gate) * metre,
    "saves": lambda start, gets, spends, weeks: start + gets * weeks - spends * weeks,
    "buses": lambda classes, pupils, teachers, seats: math.ceil(classes * (pupils + teachers) / seats),
    "remainder": lambda total, sold, size: (total - sold) - (total - sold) // size * size,
    "half": lambda had, more: had / 4 + more,
}
NUMBER_WORDS = {"One ticket": " ticket", "One metre": "1 metre"}


def numbers(text: str) -> list[Decimal]:
    for words, digits in NUMBER_WORDS.items():
        text = text.replace(words, digits)
    return [Decimal(n) for n in re.findall(r"\d+(?:\.\d+)?", text)]


def test_each_answer_is_that_of_its_text() -> None:
    tasks = WordProblems(split="train").task_set()
    seen = set()
    for index in range(400):
        task = tasks[index].inputs
        expected = SOLVERS[task["template"]](*numbers(task["question"]))
        assert Decimal(task["answer"]) == expected, task
        assert expected >= 0
        seen.add(task["template"])
    assert seen == set(SOLVERS)


def test_money_is_given_in_dollars_and_cents() -> None:
    tasks = WordProblems(split="train").task_set()
    money = [t.inputs["answer"] for t in (tasks[i] for i in range(300)) if t.inputs["template"] == "change"]
    assert money
    assert all(re.fullmatch(r"\d+\.\d\d", answer) for answer in money)


def test_splits_share_no_question_and_seeds_make_other_ones() -> None:
    def questions(split: str, seed: int = 0) -> set[str]:
        tasks = WordProblems(split=split, task_seed=seed).task_set()
        return {tasks[i].inputs["question"] for i in range(300)}

    assert questions("train") == questions("train")
    assert not questions("train") & questions("test")
    assert not questions("train") & questions("train", seed=1)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("{gold}", 1.0),
        ("First 3, then 4, so {answer}.", 1.0),
        ("**{answer}**", 1.0),
        ("{answer} or 1", 0.0),
        ("{answer}1", 0.0),
        ("-{answer}", 0.0),
        ("", 0.0),
        ("{question}", 0.0),
        ("I refuse.", 0.0),
        ("9" * 1_000_000, 0.0),
        ("1," * 500_000, 0.0),
        ("\0\u2028\ud800", 0.0),
        ("٣٤", 0.0),
    ],
)
def test_replies_get_what_they_deserve(reply: str, value: float) -> None:
    env = WordProblems(split="test")
    for index in (0, 5, 9):
        env.reset(options={"task": index})
        said = reply.replace("{gold}", env.gold())
        for field in ("question", "answer"):
            said = said.replace(f"{{{field}}}", env.task[field])
        _, reward, terminated, _, info = env.step(said)
        assert (reward, terminated, info["reward_result"].ok) == (value, True, True)


def test_gymnasium_finds_nothing_to_say() -> None:
    with gymnasium.make("vime_agents/WordProblems-v0") as env:
        check_env(env.unwrapped)
