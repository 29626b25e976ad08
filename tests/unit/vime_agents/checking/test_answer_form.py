"""What is taken for the form of an answer, and what for a part of it."""

from __future__ import annotations

import re

import pytest

from vime_agents.checking.answer_form import frames, without_frames

FRAMED = {
    "tags": ("So <answer>\n42</answer>", "So \n42", ["<answer>"]),
    "a box": (r"Thus \boxed{\frac{1}{2}}", r"Thus \frac{1}{2}", [r"\boxed{\frac{1}{2}}"]),
    "a block": ("```sql\nSELECT 1\n```", "SELECT 1", ["```sql"]),
    "hashes": ("3 + 4 = 7\n#### 7", "3 + 4 = 7\n 7", ["####"]),
    "brackets": ("I go up.\n[up]", "I go up.\nup", ["[up]"]),
    "a label": ("It is old.\n**Answer:** 1850", "It is old.\n 1850", ["**Answer:**"]),
    "a phrase": ("The final answer is 42", "42", ["The final answer is"]),
    "JSON": ('{"answer": 42, "unit": "km"}', "42 km", ['"answer"', '"unit"']),
}


@pytest.mark.parametrize("name", FRAMED)
def test_frames_are_found_and_taken_off(name: str) -> None:
    text, bare, literals = FRAMED[name]
    found = frames(text)
    assert list(found.values()) == literals
    assert without_frames(text, found) == bare
    assert without_frames(text, []) == text


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "SELECT name FROM customers WHERE city = 'Oslo'",
        "https://example.org/a",
        "def f(xs):\n    return xs[0] if a < b > c else [1, 2]",
        "x > 3 and y < 4",
        "[1, 2, 3] and more",
        "the answer",
        "12:30",
        "",
    ],
)
def test_answers_themselves_are_no_form(text: str) -> None:
    assert frames(text) == {}
    assert without_frames(text, []) == text


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("<answer>4</answer>", "Put it between answer tags."),
        ("<answer>4</answer>", "Give your final answer between <answer> and </answer>."),
        (r"\boxed{4}", "Box the result."),
        ("```python\nx\n```", "Reply with one code block."),
        ("#### 4", "End with four hashes and the number."),
        ("[up]", "Write the direction in square brackets."),
        ("Answer: 1850", "End with a line like `Answer: 1900`."),
        ("Answer: 1850", 'a line that begins with "answer"'),
        ('{"answer": 4}', "Reply in JSON."),
        ("The answer is 4", "End with: the answer is N"),
    ],
)
def test_a_prompt_that_names_the_form_is_understood(reply: str, told: str) -> None:
    assert any(re.search(sign, told, re.IGNORECASE) for sign in frames(reply))
    assert not any(re.search(sign, "What is the answer to 2 + 2?", re.IGNORECASE) for sign in frames(reply))
