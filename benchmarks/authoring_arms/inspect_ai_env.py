"""The calculator in inspect_ai."""

import random

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def multiply():
    async def execute(a: int, b: int) -> str:
        """Multiply two numbers.

        Args:
            a: the one.
            b: the other.
        """
        return str(a * b)

    return execute


@scorer(metrics=[accuracy()])
def last_word():
    async def score(state, target):
        right = state.output.completion.split()[-1:] == [target.text]
        return Score(value=CORRECT if right else INCORRECT)

    return score


def samples(number):
    rng = random.Random(0)
    for _ in range(number):
        a, b = rng.randrange(100, 1000), rng.randrange(100, 1000)
        yield Sample(input=f"What is {a} * {b}? End with the number.", target=str(a * b))


@task
def calculator(number=100):
    return Task(dataset=list(samples(number)), solver=[use_tools(multiply()), generate()], scorer=last_word())
