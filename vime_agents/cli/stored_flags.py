"""Flags of the commands that read stored episodes."""

from __future__ import annotations

import argparse
import math
import re

from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.errors import ConfigError
from vime_agents.storage.episode_filter import EpisodeFilter

FOLDER_HELP = """\
FOLDER is one that `vime-agents eval --out` or `vime-agents train` made, or a file of episodes in it. It can
be read while it is written.
"""


def add_filter_flags(parser: Parser) -> None:
    """Add the flags that choose episodes."""
    group = parser.add_argument_group("which episodes (all that is asked must hold)")
    group.add_argument(
        "--failed", action="store_true", help="failed, or without a reward that can be trusted"
    )
    group.add_argument(
        "--status", metavar="STATUS", help="ok, truncated, error, or error of a class: error:sandbox"
    )
    group.add_argument(
        "--min-reward", type=float, default=-math.inf, metavar="X", help="an agent's reward is at least X"
    )
    group.add_argument(
        "--max-reward", type=float, default=math.inf, metavar="X", help="an agent's reward is at most X"
    )
    group.add_argument("--task", metavar="ID", help="the task's id; * and ? stand for other characters")
    group.add_argument(
        "--grep", metavar="REGEX", help="found in a message, a tool call or an error; (?i)REGEX in any case"
    )


def filter_of(flags: argparse.Namespace) -> EpisodeFilter:
    """What the flags ask for. Raises ConfigError."""
    try:
        grep = None if flags.grep is None else re.compile(flags.grep)
    except re.error as error:
        raise ConfigError(f"--grep: {flags.grep!r} is no regular expression: {error}") from error
    return EpisodeFilter(
        failed=flags.failed,
        status=flags.status,
        min_reward=flags.min_reward,
        max_reward=flags.max_reward,
        task=flags.task,
        grep=grep,
    )
