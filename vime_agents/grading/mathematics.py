"""Is this answer that number, fraction, set, interval, expression? By `math-verify`, which may take for ever.

Importing this takes as long as importing SymPy. Call it in a process that can be killed:

```
from vime_agents.grading.mathematics import math_equal

@reward(process=True)
def right(text, answer):
    return math_equal(text, answer)
```
"""

from __future__ import annotations

from vime_agents.errors import MissingDependencyError, Unscorable
from vime_agents.grading.warm_up import before_grading

try:
    import math_verify
except ModuleNotFoundError as error:
    raise MissingDependencyError("math-verify", "math", "grading mathematics") from error


def math_equal(text: str, gold: str) -> bool:
    r"""Whether the answer that a text comes to equals `gold`.

    Args:
        text: of the agent; its thoughts, up to `</think>`, are passed over. A `\boxed{}` answer comes first,
            then formulas, then numbers; a text without any of them is wrong.
        gold: LaTeX or plain; `$` around it may be left out.

    Raises:
        Unscorable: `gold` is no mathematics.
    """
    marked = gold if "$" in gold or "\\boxed" in gold else f"${gold}$"
    # No time limits: theirs are signals, which a loop in C never sees. The pool has its own.
    key = math_verify.parse(marked, parsing_timeout=None)  # type: ignore[arg-type]
    if not any(not isinstance(found, str) for found in key):
        raise Unscorable(f"the answer key {gold!r:.200} cannot be read as mathematics")
    answer = math_verify.parse(text.rpartition("</think>")[2], parsing_timeout=None)  # type: ignore[arg-type]
    return math_verify.verify(key, answer, timeout_seconds=None)


# The parser builds its tables at its first use of each construct: a third of a second.
before_grading(
    lambda: math_equal("$\\frac{1}{2} x^2 + \\sqrt{3}$, so \\boxed{\\{1, (2)\\}}", "$x^2 - 1 = \\frac{1}{2}$")
)
