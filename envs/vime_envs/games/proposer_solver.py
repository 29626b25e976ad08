"""ProposerSolver-v0: one poses problems of arithmetic, neither too easy nor too hard, that others solve."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vime_agents.episode import Outcome, RewardResult
from vime_agents.messages import Message
from vime_agents.multi_agent import MultiAgentEnv
from vime_agents.reward import Score

SOLVERS = ("solver_0", "solver_1", "solver_2", "solver_3")
_THEMES = ("sums", "products", "whole division", "brackets", "negative numbers")
_TEST_THEMES = ("remainders", "many terms")
_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST = 10**12
"""No number on the way to the answer may be larger: floats hold all of these exactly."""
_LONGEST = 100
"""Characters of a problem."""
_READ = 10_000
"""Characters of a reply that are looked at, from the end."""
_PROBLEM = re.compile(r"\bPROBLEM\s*:([^\n]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])-?[0-9][0-9,]*(?:\.[0-9]+)?(?!\w)")


class ProposerSolver(MultiAgentEnv):
    """A problem by one agent, and four answers by others at the same time, who do not see each other's.

    A solver has 1 for the right number. The proposer has 1 less the share of solvers who are right; but 0 if
    all are or none is, for then there is nothing to learn (Zhao et al. 2025, Absolute Zero, eq. 4). The
    answer is worked out from the problem itself: the proposer cannot be wrong about it.

    Solvers are compared with each other inside an episode, which is one problem; the proposer is compared
    with the proposers of the task's other episodes.
    """

    possible_agents = ("proposer", *SOLVERS)
    roles = dict.fromkeys(SOLVERS, "solver")
    compared_in_episode = frozenset({"solver"})
    reward_range = (0.0, 1.0)
    max_turns = len(possible_agents)

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """What the problem is to be about."""
        themes = _TEST_THEMES if self.split == "test" else _THEMES
        return {"theme": themes[int(rng.integers(len(themes)))]}

    def start(self, rng: np.random.Generator) -> str:
        """The proposer begins."""
        self.problem, self.answer = "", 0
        return "proposer"

    def rules(self, me: str) -> str:
        """What one's role does."""
        if me in SOLVERS:
            return (
                "Work out the value. // is division rounded down, and % its remainder. End with the number."
            )
        return (
            "Pose a problem of arithmetic for solvers like you, such that some of them get it right and some "
            f"do not. It is to be about {self.task['theme']}. Write whole numbers, + - * // % and brackets, "
            f"at most {_LONGEST} characters. End your reply with a line like this:\n"
            "PROBLEM: 17 * (23 - 4) % 7"
        )

    def view(self, me: str) -> str:
        """The problem, to solvers."""
        return f"What is {self.problem} ?" if me in SOLVERS else "Your problem?"

    def advance(self, replies: Mapping[str, Message | Outcome]) -> Sequence[str] | Mapping[str, Score]:
        """Pose the problem, or score the answers."""
        if "proposer" in replies:
            return self._pose(replies["proposer"])
        right: list[float] = []
        for solver, reply in replies.items():
            if not isinstance(reply, Outcome):
                right.append(float(last_number(reply["content"]) == self.answer))
                self.leave(solver, right[-1])
            elif reply.kind == "truncated":
                right.append(0.0)
                self.leave(solver, 0.0, stop=reply.stop, truncated=True)
            else:
                self.leave(solver, _unscorable(reply.detail))
        return {"proposer": proposer_reward(right) if right else _unscorable("no solver could answer")}

    def legal(self, me: str) -> Sequence[str]:
        """Some problems; the right number and its neighbours."""
        if me in SOLVERS:
            return [str(self.answer + off) for off in (0, 1, -1)]
        return ("PROBLEM: 1 + 1", "PROBLEM: 17 * (23 - 4) % 7", "PROBLEM: 987 * (654 - 321) // 13")

    def gold(self, me: str) -> str:
        """The right number; of the proposer, a problem, whose worth depends on the solvers."""
        return str(self.answer) if me in SOLVERS else "PROBLEM: 17 * (23 - 4) % 7"

    def _pose(self, reply: Message | Outcome) -> Sequence[str] | Mapping[str, Score]:
        if isinstance(reply, Outcome):
            why = reply.detail
        else:
            try:
                self.problem = stated_problem(reply["content"])
                self.answer = evaluate(self.problem)
            except ValueError as error:
                self.count("bad_problems")
                why = str(error)
            else:
                return SOLVERS
        failed = isinstance(reply, Outcome) and reply.kind == "failed"
        of_proposer: Score = _unscorable(why) if failed else 0.0
        return {**dict.fromkeys(SOLVERS, _unscorable(f"no problem: {why}")), "proposer": of_proposer}


def proposer_reward(right: Sequence[float]) -> float:
    """1 less the mean of the solvers' rewards; 0 if that is 0 or 1."""
    mean = sum(right) / len(right)
    return 0.0 if mean in (0.0, 1.0) else 1.0 - mean


def stated_problem(text: str) -> str:
    """The last problem that a reply states. Raises ValueError: there is none, or too long a one."""
    found = _PROBLEM.findall(text[-_READ:])
    if not found:
        raise ValueError("the reply has no line PROBLEM: and an expression")
    problem = found[-1].strip()
    if len(problem) > _LONGEST:
        raise ValueError(f"the problem has {len(problem)} characters; at most {_LONGEST} are allowed")
    return problem


def evaluate(problem: str) -> int:
    """The value of whole numbers under + - * // %. Raises ValueError: something else, or out of bounds."""
    if not re.fullmatch(r"[0-9+\-*/%() ]+", problem):
        raise ValueError(f"{problem!r} holds more than whole numbers, + - * // % and brackets")
    try:
        return _value(ast.parse(problem.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError) as error:
        raise ValueError(f"{problem!r}: {error}") from error


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        found = _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        found = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError(f"{ast.unparse(node)!r} is not of whole numbers under + - * // %")
    if abs(found) > _LARGEST:
        raise ValueError(f"it leads to numbers beyond {_LARGEST:.0e}")
    return found


def last_number(text: str) -> float | None:
    """The last number that a reply says; None: it says none."""
    found = _NUMBER.findall(text, max(0, len(text) - _READ))
    if not found:
        return None
    digits = found[-1].replace(",", "")
    return float(digits) if len(digits) <= 40 else None


def _unscorable(why: str) -> RewardResult:
    return RewardResult(value=None, status="unscorable", detail=why)
