"""`vime-agents view`: look at stored episodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.cli.stored_flags import FOLDER_HELP, add_filter_flags, filter_of
from vime_agents.errors import ConfigError
from vime_agents.storage.episode_filter import EpisodeFilter
from vime_agents.storage.stored_episodes import StoredEpisode, episode_files, find_episode, stored_episodes
from vime_agents.viewer.html import write_html
from vime_agents.viewer.listing import Totals, row_of
from vime_agents.viewer.terminal import print_list, print_transcript
from vime_agents.viewer.transcript import transcript

EPILOG = f"""\
{FOLDER_HELP}
Without EPISODE, a line for each episode. EPISODE is an id, SOURCE/ID where several files have it, or a number
of the list: that one is shown whole, with messages, tool calls, rewards by component, and where its tokens
stand in the loss. On a terminal both are paged; elsewhere they are plain text.

--html writes a list and a page for each episode, which need no server and no network.

Exit code 1 when there are no such episodes.
"""


def run(argv: Sequence[str]) -> int:
    """List, show one, or write HTML."""
    parser = Parser(
        "view",
        "Look at stored episodes.",
        group="",
        usage="FOLDER [EPISODE] [--html OUT] [--failed] [--status STATUS] [--grep REGEX ...]",
        epilog=EPILOG,
    )
    parser.add_argument("folder", nargs="?", metavar="FOLDER")
    parser.add_argument("episode", nargs="?", metavar="EPISODE")
    parser.add_argument("--html", metavar="OUT", help="folder to write HTML to; an earlier view is replaced")
    add_filter_flags(parser)
    flags = parser.parse(argv)
    if flags.folder is None:
        raise ConfigError(f"{parser.prog}: give a FOLDER that `vime-agents eval --out` or `train` made")
    wanted = filter_of(flags)
    files = episode_files(flags.folder)
    if flags.episode is not None:
        if flags.html is not None or not wanted.keeps_everything:
            raise ConfigError(
                f"{parser.prog}: EPISODE names one; leave it out, or leave --html and filters out"
            )
        print_transcript(transcript(find_episode(files, flags.episode)), sys.stdout)
        return 0
    totals = Totals()
    chosen = _chosen(files, wanted, totals)
    if flags.html is not None:
        count = write_html(chosen, flags.html, title=str(flags.folder), totals=totals)
        print(f"{totals}: open {Path(flags.html) / 'index.html'}")
        return 0 if count else 1
    rows = []
    for stored in chosen:
        rows.append(row_of(stored))
        totals.add(rows[-1])
    print_list(rows, str(totals), sys.stdout)
    return 0 if rows else 1


def _chosen(files: Sequence[Path], wanted: EpisodeFilter, totals: Totals) -> Iterator[StoredEpisode]:
    """Those that are wanted; the others are counted."""
    for stored in stored_episodes(files):
        totals.num_seen += 1
        if wanted.keeps(stored):
            yield stored
