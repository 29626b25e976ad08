"""`vime-agents check`: does an environment keep its promises?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from vime_agents.checking.finding import CheckResult
from vime_agents.checking.report import format_list, format_report
from vime_agents.checking.supervise import run_checks
from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.errors import ConfigError

EPILOG = """\
ENV is an id that `vime-agents envs` lists, or module:Class. No model is needed: its own gold replies, useless
ones, noise, samples of its action space and hostile text are played, in a process of its own.

Exit code 0 when nothing is wrong: warnings and checks that do not apply to this environment are no fault.
1 when there is an error, or a check could not be run.
"""


def run(argv: Sequence[str]) -> int:
    """Check and report."""
    parser = Parser(
        "check",
        "Check an environment without a model: interface, determinism, isolation, tools, rewards, leaks.",
        group="",
        usage="ENV [--quick] [--only ID ...] [--split SPLIT] [--json]  |  --list",
        epilog=EPILOG,
    )
    parser.add_argument("env", nargs="?", metavar="ENV")
    parser.add_argument("--quick", action="store_true", help="fewer tasks, seeds and episodes")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="this check, and those that it needs; repeatable",
    )
    parser.add_argument("--split", default="train", help="whose tasks are played; default: train")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    parser.add_argument("--list", action="store_true", help="print the checks and end")
    flags = parser.parse(argv)
    if flags.list:
        print(format_list())
        return 0
    if flags.env is None:
        raise ConfigError(f"{parser.prog}: which environment? Give an id, or module:Class")
    report = asyncio.run(
        run_checks(
            flags.env,
            split=flags.split,
            quick=flags.quick,
            only=flags.only,
            on_result=_show_progress if sys.stderr.isatty() else lambda result: None,
        )
    )
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(json.dumps(report.to_dict()) if flags.json else format_report(report))
    return 0 if report.ok else 1


def _show_progress(result: CheckResult) -> None:
    print(f"\r\x1b[K{result.id}: {result.state}", end="", file=sys.stderr, flush=True)
