"""`vime-agents check`: does an environment keep its promises?"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

from vime_agents.checking.finding import CheckResult
from vime_agents.checking.report import format_list, format_report
from vime_agents.checking.scale import BOUNDS, FULL, QUICK, Scale
from vime_agents.checking.supervise import run_checks
from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.errors import ConfigError

EPILOG = """\
ENV is an id that `vime-agents envs` lists, or module:Class. No model is needed: its own gold replies, useless
ones, noise, samples of its action space and hostile text are played, in a process of its own.

More tasks, seeds and episodes find what is rarer: a gold reply that is wrong on one task in a hundred
(--only gold-wins --tasks 1000), an episode that differs now and then (--only same-seed --seeds 100), a file
that one episode in a hundred leaves open (--only leak-files --soak 2000). One check may take 15 minutes;
where --tasks, --seeds or --soak is several times its default, as many times that. Then it is ended, and
`hang` reports it.

Exit code 0 when nothing is wrong: warnings and checks that do not apply to this environment are no fault.
1 when there is an error, or a check could not be run.
"""


def run(argv: Sequence[str]) -> int:
    """Check and report."""
    parser = Parser(
        "check",
        "Check an environment without a model: interface, determinism, isolation, tools, rewards, leaks.",
        group="",
        usage="ENV [--quick] [--tasks N] [--seeds N] [--soak N] [--slow-ms MS]\n"
        "                         [--only ID ...] [--split SPLIT] [--json]  |  --list",
        epilog=EPILOG,
    )
    parser.add_argument("env", nargs="?", metavar="ENV")
    parser.add_argument(
        "--quick", action="store_true", help="fewer tasks, seeds and episodes, and shorter waits"
    )
    _add_scale_flags(parser)
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
            scale=_scale_of(flags),
            only=flags.only,
            on_result=_show_progress if sys.stderr.isatty() else lambda result: None,
        )
    )
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(json.dumps(report.to_dict()) if flags.json else format_report(report))
    return 0 if report.ok else 1


def _add_scale_flags(parser: Parser) -> None:
    group = parser.add_argument_group("how much is tried")
    for flag, metavar, field, units, text in (
        ("--tasks", "N", "num_tasks", 1, "tasks that are played by the checks that play several"),
        ("--seeds", "N", "num_seeds", 1, "seeds that the checks of determinism play, in new processes too"),
        ("--soak", "N", "num_leak_episodes", 1, "episodes that the leak checks play"),
        ("--slow-ms", "MS", "lag_s", 1000, "milliseconds that an async hook or tool may hold the event loop"),
    ):
        full, quick = (getattr(scale, field) * units for scale in (FULL, QUICK))
        usual = f"{full:g}" if full == quick else f"{full:g}, with --quick {quick:g}"
        group.add_argument(
            flag,
            dest=field,
            type=_number(field, units),
            metavar=metavar,
            help=f"{text}; {BOUNDS[field].least * units:g} or more (default: {usual})",
        )


def _number(field: str, units: int) -> Callable[[str], float]:
    """Reads a flag: `units` of what it says make one of the field's."""
    whole = isinstance(getattr(FULL, field), int)

    def read(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is no {'whole ' if whole else ''}number") from None
        problem = BOUNDS[field].problem(value, units=units)
        if problem is not None:
            raise ArgumentTypeError(problem)
        return value if whole else value / units

    return read


def _scale_of(flags: Namespace) -> Scale:
    asked = {field: getattr(flags, field) for field in BOUNDS if getattr(flags, field) is not None}
    return replace(QUICK if flags.quick else FULL, **asked)


def _show_progress(result: CheckResult) -> None:
    print(f"\r\x1b[K{result.id}: {result.state}", end="", file=sys.stderr, flush=True)
