"""WordProblems-v0: grade-school word problems of two to four steps, made from templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vime_agents.answers import match_number
from vime_agents.env import AgentEnv

_PEOPLE = "Ada Ben Chen Dina Emil Fatima Goran Hana Ivo Jun Kofi Lena Marta Nils Olga Priya".split()  # noqa: SIM905
_THINGS = "apples books marbles pencils shells stamps stickers tickets".split()  # noqa: SIM905


class _Draw:
    """Random parts of one problem."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        people = rng.choice(_PEOPLE, 2, replace=False)
        self.name, self.other = (str(p) for p in people)
        self.things = str(rng.choice(_THINGS))

    def number(self, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return int(self._rng.integers(low, high + 1))


def _gives_away(d: _Draw) -> tuple[str, int]:
    boxes, each, given = d.number(3, 40), d.number(6, 60), d.number(1, 17)
    return (
        f"{d.name} has {boxes} boxes with {each} {d.things} in each, and gives {given} {d.things} to "
        f"{d.other}. How many {d.things} does {d.name} have left?",
        boxes * each - given,
    )


def _shares(d: _Draw) -> tuple[str, int]:
    friends, each, kept = d.number(3, 15), d.number(4, 60), d.number(2, 50)
    total = friends * each + kept
    return (
        f"{d.name} has {total} {d.things}, keeps {kept} of them and shares the rest equally among {friends} "
        f"friends. How many {d.things} does each friend get?",
        each,
    )


def _change(d: _Draw) -> tuple[str, str]:
    pieces, price = d.number(2, 9), d.number(21, 499)
    note = next(n for n in (10, 20, 50, 100) if n * 100 >= pieces * price)
    cents = note * 100 - pieces * price
    return (
        f"One ticket costs {_money(price)}. {d.name} buys {pieces} tickets and pays with a note of {note} "
        "dollars. How many dollars of change are there? Give dollars and cents, for example 3.05.",
        f"{cents // 100}.{cents % 100:02d}",
    )


def _money(cents: int) -> str:
    return f"${cents // 100}.{cents % 100:02d}"


def _travels(d: _Draw) -> tuple[str, int]:
    first, second, fast, slow = d.number(2, 9), d.number(2, 9), d.number(50, 130), d.number(10, 49)
    return (
        f"{d.name} drives for {first} hours at {fast} km per hour, and then for {second} hours at {slow} km "
        "per hour. How many kilometres is that in all?",
        first * fast + second * slow,
    )


def _grows_older(d: _Draw) -> tuple[str, int]:
    child, factor, years = d.number(4, 14), d.number(3, 5), d.number(2, 20)
    return (
        f"{d.name} is {child} years old. {d.other} is {factor} times as old. How old will {d.other} be in "
        f"{years} years, and how many years older than {d.name} then? Add the two numbers.",
        child * factor + years + child * (factor - 1),
    )


def _fence(d: _Draw) -> tuple[str, int]:
    width, length, metre, gate = d.number(5, 60), d.number(5, 90), d.number(3, 25), d.number(2, 4)
    return (
        f"A garden is {length} m long and {width} m wide. {d.name} puts a fence around it, but for a gate of "
        f"{gate} m. One metre of fence costs {metre} dollars. How many dollars does the fence cost?",
        (2 * (width + length) - gate) * metre,
    )


def _saves(d: _Draw) -> tuple[str, int]:
    weekly, spent, weeks, start = d.number(8, 40), d.number(1, 7), d.number(3, 30), d.number(0, 90)
    return (
        f"{d.name} has {start} dollars, gets {weekly} dollars each week and spends {spent} dollars of them. "
        f"How many dollars does {d.name} have after {weeks} weeks?",
        start + (weekly - spent) * weeks,
    )


def _buses(d: _Draw) -> tuple[str, int]:
    classes, pupils, teachers, seats = d.number(3, 12), d.number(18, 31), d.number(1, 3), d.number(30, 55)
    people = classes * (pupils + teachers)
    return (
        f"{classes} classes go on a trip, each with {pupils} pupils and {teachers} teachers. A bus has "
        f"{seats} seats. How many buses are needed?",
        -(-people // seats),
    )


def _remainder(d: _Draw) -> tuple[str, int]:
    total, size, sold = d.number(200, 2000), d.number(6, 24), d.number(10, 150)
    return (
        f"A baker makes {total} rolls, sells {sold} of them one by one, and packs the others into bags "
        f"of {size}. Only full bags are sold. How many rolls are left over in the end?",
        (total - sold) % size,
    )


def _half(d: _Draw) -> tuple[str, int]:
    quarter, more = d.number(5, 200), d.number(3, 60)
    return (
        f"{d.name} had {4 * quarter} {d.things}, lost half of them, and then gave half of the rest to "
        f"{d.other}, who had {more} {d.things} before. How many {d.things} does {d.other} have now?",
        quarter + more,
    )


_TEMPLATES: tuple[Callable[[_Draw], tuple[str, int | str]], ...] = (
    _gives_away,
    _shares,
    _change,
    _travels,
    _grows_older,
    _fence,
    _saves,
    _buses,
    _remainder,
    _half,
)


class WordProblems(AgentEnv):
    """One word problem; the reward is 1 when the last number of the reply is exactly right."""

    max_turns = 1

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:  # noqa: D102
        template = _TEMPLATES[int(rng.integers(len(_TEMPLATES)))]
        question, answer = template(_Draw(rng))
        return {"template": template.__name__.strip("_"), "question": question, "answer": str(answer)}

    def prompt(self) -> str:  # noqa: D102
        return f"{self.task['question']} Think step by step, and end your reply with the number."

    def score(self, text: str) -> float:  # noqa: D102
        return float(match_number(text, self.task["answer"]))

    def gold(self) -> str:  # noqa: D102
        return f"The answer is {self.task['answer']}"
