from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from vime_agents.errors import GraderOutOfMemory, GraderTimeout, Unscorable
from vime_agents.grading import GraderLimits, GraderPool

pytest.importorskip("math_verify")
from vime_agents.grading.mathematics import math_equal

pytestmark = pytest.mark.integration  # processes that import SymPy


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(limits=GraderLimits(timeout_s=60)) as pool:
        yield pool


@pytest.mark.parametrize(
    ("text", "gold", "equal"),
    [
        ("The answer is 42.", "42", True),
        ("So it is \\boxed{\\frac{1}{2}}", "0.5", True),
        ("$x^2 + 2x + 1$", "(x+1)^2", True),
        ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}", True),
        ("It could be 41, but it is \\boxed{42}, not 43", "$42$", True),
        ("<think>maybe \\boxed{41}</think> 42", "42", True),
        ("43", "42", False),
        ("<think>\\boxed{42}</think> I do not know", "42", False),
        ("$x^2 + 2x$", "(x+1)^2", False),
        ("", "42", False),
        ("I refuse", "42", False),
        ("\0\u2028\\boxed{", "42", False),
        ("\\boxed{\\frac{}{}}", "42", False),
    ],
)
async def test_answers_are_compared_as_mathematics(
    pool: GraderPool, text: str, gold: str, equal: bool
) -> None:
    assert await pool.run(math_equal, (text, gold)) is equal


@pytest.mark.parametrize("gold", ["", "\\frac{"])
async def test_a_key_that_is_no_mathematics_is_unscorable_and_not_wrong(pool: GraderPool, gold: str) -> None:
    with pytest.raises(Unscorable, match="cannot be read as mathematics"):
        await pool.run(math_equal, ("42", gold))


async def test_an_answer_that_cannot_be_worked_out_is_a_typed_failure(pool: GraderPool) -> None:
    await pool.run(math_equal, ("1", "1"))
    with pytest.raises((GraderTimeout, GraderOutOfMemory)):
        await pool.run(math_equal, ("$9^{9^{9^{9}}} + 1$", "7"), limits=GraderLimits(timeout_s=1))


def test_a_missing_package_names_its_extra() -> None:
    code = "import sys; sys.modules['math_verify'] = None; import vime_agents.grading.mathematics"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependencyError" in done.stderr
    assert "pip install 'vime-agents[math]'" in done.stderr
