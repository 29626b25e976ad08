"""`vime-agents rescore`: what would an evaluation have come to with the graders of today?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from vime_agents.cli import OK, TOO_MANY_ERRORS
from vime_agents.cli.progress import EvalProgress
from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.errors import ConfigError
from vime_agents.evaluation.rescore import Rescored, RewardChange, rescore
from vime_agents.evaluation.stand_in import Refused
from vime_agents.storage.stored_evaluation import StoredEvaluation

EPILOG = """\
FOLDER is one that `vime-agents eval --out FOLDER` made. No model is asked and nothing is played: graders get
the task, the messages, the answer, the counters and the attributes of the environment that were stored with
each episode. What needs something else is refused by name, and nothing is written then. FOLDER is only read.

`vime-agents compare FOLDER NEW` tells the two apart task by task.
"""


def run(argv: Sequence[str]) -> int:
    """Score again and report."""
    parser = Parser(
        "rescore",
        "Score the episodes of an evaluation again, with the environment's present graders.",
        group="",
        usage="FOLDER [--out NEW] [--env ENV] [--tasks stored|present] [--keep NAME ...] [--top N] [--json]",
        epilog=EPILOG,
    )
    parser.add_argument("folder", nargs="?", metavar="FOLDER")
    parser.add_argument("--out", metavar="NEW", help="the new folder; default: FOLDER-rescored")
    parser.add_argument(
        "--env", metavar="ENV", help="whose graders, as id or module:Class; default: those of what was played"
    )
    parser.add_argument(
        "--tasks",
        choices=("stored", "present"),
        help="which tasks to grade on, where the environment's were changed since: stored, as they were "
        "played; present, as they are now; default: refuse",
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help="a component of the reward whose stored values stay; repeatable",
    )
    parser.add_argument(
        "-c", "--concurrency", type=int, default=64, metavar="N", help="episodes at once; default: 64"
    )
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="list at most N changed episodes; default: 20"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    flags = parser.parse(argv)
    if flags.folder is None:
        raise ConfigError(f"{parser.prog}: which folder? Give one that `vime-agents eval --out` made")
    for name, least in (("top", 0), ("concurrency", 1)):
        if getattr(flags, name) < least:
            raise ConfigError(f"--{name}: must be a whole number >= {least}, got {getattr(flags, name)}")
    stored = StoredEvaluation.open(flags.folder)
    out = Path(flags.out or f"{stored.path}-rescored")
    total = int(stored.settings.get("num_tasks", 1)) * int(stored.settings.get("samples_per_task", 1))
    try:
        with EvalProgress(total, sys.stderr) as progress:
            found = asyncio.run(
                rescore(
                    stored,
                    out,
                    env_id=flags.env,
                    tasks_from=flags.tasks,
                    keep=flags.keep,
                    concurrency=flags.concurrency,
                    top=flags.top,
                    on_episode=progress.add,
                )
            )
    except Refused as error:
        raise ConfigError(_refusal(error)) from error
    print(json.dumps(found.to_dict()) if flags.json else format_rescored(found))
    limit = stored.settings.get("max_error_rate", 1.0)
    if found.new.infrastructure_error_rate > limit:
        print(
            f"vime-agents: {found.new.infrastructure_error_rate:.1%} of the episodes have no reward for "
            f"reasons of infrastructure, more than the evaluation's --max-error-rate {limit:g}",
            file=sys.stderr,
        )
        return TOO_MANY_ERRORS
    return OK


def format_rescored(r: Rescored) -> str:
    """The outcome for a person."""
    old, new = r.old, r.new
    lines = [
        f"{new.env_id} ({new.split}, {new.num_tasks} tasks x {new.samples_per_task}, seed {new.seed}) played "
        f"by {new.policy}",
        f"  reward    {old.mean:.4f} -> {new.mean:.4f}   95 % interval {new.ci_low:.4f} to {new.ci_high:.4f} "
        f"({new.ci_method}, {old.n_scored} -> {new.n_scored} scored)",
    ]
    if old.n_scored < old.n or new.n_scored < new.n:
        lines.append(
            f"            {old.mean_errors_as_zero:.4f} -> {new.mean_errors_as_zero:.4f} if every episode "
            "without a reward got 0"
        )
    lines += [
        f"  episodes  {r.num_rescored} scored again, {r.num_changed} changed",
        *(f"            {count} left as they were: {why}" for why, count in r.left.items()),
        *(f"  tasks     graded on other tasks than were played: {text}" for text in r.other_tasks),
        f"  written   {r.out}",
        *(f"  error     {kind}: {text[:300]}" for kind, text in new.error_examples.items()),
        *(f"  {_line(change)}" for change in r.changes),
    ]
    if r.num_changed > len(r.changes):
        lines.append(f"  ... and {r.num_changed - len(r.changes)} more")
    return "\n".join(lines)


def _line(change: RewardChange) -> str:
    parts = ", ".join(f"{n} {_value(old)} -> {_value(new)}" for n, (old, new) in change.components.items())
    why = f"  {change.detail[:100]}" if change.new is None else f"  ({parts})" if parts else ""
    return f"{_value(change.old)} -> {_value(change.new)}  {change.episode_id} of task {change.task_id}{why}"


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _refusal(error: Refused) -> str:
    needs = "\n".join(f"  {name} needs {what}" for name, what in error.needs.items())
    keep = " ".join(f"--keep {name}" for name in error.needs)
    # A `score` is all that there is: there would be nothing to compute beside it.
    fix = "" if list(error.needs) == ["score"] else f"{keep} leaves what they were worth; or "
    return f"not all of the reward can be computed from what is stored:\n{needs}\n{fix}evaluate again"
