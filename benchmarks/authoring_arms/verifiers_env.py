"""The calculator in verifiers."""

import random

import verifiers.legacy as vf
from datasets import Dataset


async def multiply(a: int, b: int) -> str:
    """Multiply two numbers.

    Args:
        a: the one.
        b: the other.
    """
    return str(a * b)


def last_word(completion, answer, **kwargs) -> float:
    return float((completion[-1].content or "").split()[-1:] == [answer])


def rows(number):
    rng = random.Random(0)
    for _ in range(number):
        a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
        yield {"question": f"What is {a} * {b}? End with the number.", "answer": str(a * b)}


def load_environment(number=100):
    return vf.ToolEnv(
        eval_dataset=Dataset.from_list(list(rows(number))),
        tools=[multiply],
        rubric=vf.Rubric(funcs=[last_word]),
        max_turns=10,
    )
