"""`vime-agents compare`: is one evaluation better than another?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.errors import ConfigError
from vime_agents.evaluation.compare import Comparison, TaskChange, compare
from vime_agents.evaluation.paired import PairedDifference
from vime_agents.storage.stored_evaluation import StoredEvaluation

EPILOG = """\
Each FOLDER is one that `vime-agents eval --out FOLDER` made, of the same environment and the same tasks; the
first is what the others are compared with.

Differences are of the tasks that both have played, with a 95 % interval and the p-value of a paired t-test
over tasks; the exact p-value counts the signs that the tasks' differences could as well have had.
"""


def run(argv: Sequence[str]) -> int:
    """Compare and report."""
    parser = Parser(
        "compare",
        "Compare evaluations task by task.",
        group="",
        usage="FOLDER FOLDER [FOLDER ...] [--top N] [--json]",
        epilog=EPILOG,
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument(
        "--top",
        type=int,
        default=10,
        metavar="N",
        help="list at most N tasks that got worse, and N that got better; default: 10",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    flags = parser.parse(argv)
    if flags.top < 0:
        raise ConfigError(f"--top: must be a whole number >= 0, got {flags.top}")
    if len(flags.folders) < 2:
        raise ConfigError(f"{parser.prog}: give two folders or more that `vime-agents eval --out` made")
    first, *others = (StoredEvaluation.open(folder) for folder in flags.folders)
    comparisons = [compare(first, other, top=flags.top) for other in others]
    if flags.json:
        print(json.dumps({"comparisons": [c.to_dict() for c in comparisons]}))
    else:
        print("\n\n".join(map(format_comparison, comparisons)))
    return 0


def format_comparison(c: Comparison) -> str:
    """The comparison for a person."""
    rows = {"reward": c.reward, "errors as zero": c.errors_as_zero} | {
        name.replace("/", " "): part for name, part in c.parts.items() if part.a or part.b
    }
    width = max(map(len, rows))
    lines = [
        f"{c.env_id}: {c.reward.num_tasks + c.unscored} tasks in both",
        f"  A  {c.a} ({c.policy_a})",
        f"  B  {c.b} ({c.policy_b})",
        *(f"warning: {text}" for text in c.warnings),
        "",
        f"  {'':<{width}}  {'A':>10}  {'B':>10}  {'B - A':>10}   95 % interval",
        *(f"  {name:<{width}}  {_row(part)}" for name, part in rows.items()),
        "",
        f"p-values of the reward: {_p(c.reward.p_value)} paired t-test, "
        f"{'none' if c.sign_flip_p_value is None else _p(c.sign_flip_p_value)} exact",
        f"tasks: {c.reward.better} better, {c.reward.worse} worse, {c.reward.same} same{_left_out(c)}",
        *(_task(change) for change in c.worst),
    ]
    if len(c.worst) + len(c.best) < c.reward.better + c.reward.worse:
        lines.append("  ...")
    return "\n".join([*lines, *(_task(change) for change in c.best)])


def _row(part: PairedDifference) -> str:
    if not part.num_tasks:
        return f"{'-':>10}  {'-':>10}  in one of them alone"
    interval = "" if math.isnan(part.low) else f"   {part.low:+z.4f} to {part.high:+z.4f}"
    return f"{part.a:>10.4f}  {part.b:>10.4f}  {part.difference:>+z10.4f}{interval}"


def _p(value: float) -> str:
    if math.isnan(value):
        return "none"
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.1e}"


def _left_out(c: Comparison) -> str:
    parts = [f"{c.unscored} without a reward in one of them"] if c.unscored else []
    parts += [f"{n} only in {name}" for name, n in (("A", c.only_a), ("B", c.only_b)) if n]
    return f"; left out: {', '.join(parts)}" if parts else ""


def _task(change: TaskChange) -> str:
    return f"  {change.b - change.a:+.4f}  {change.a:.4f} -> {change.b:.4f}  {change.task_id}"
