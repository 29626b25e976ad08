"""`vime-agents export`: stored episodes for other programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vime_agents.cli.sandboxes_flags import Parser
from vime_agents.cli.stored_flags import FOLDER_HELP, add_filter_flags, filter_of
from vime_agents.errors import ConfigError, did_you_mean
from vime_agents.storage.exports.atif import ATIF_VERSION
from vime_agents.storage.exports.write import FORMATS, STDOUT, ExportFormat, export_episodes
from vime_agents.storage.stored_episodes import episode_files, stored_episodes

EPILOG = f"""\
{FOLDER_HELP}
jsonl    a line for each episode: flat columns, and its messages
parquet  the same columns (needs pyarrow)
atif     a line for each agent of each episode: a document of Harbor's {ATIF_VERSION}

Text that is no Unicode (half a surrogate pair) becomes \\udXXX, written out; all else is as it was.
"""


def run(argv: Sequence[str]) -> int:
    """Export and say what was written."""
    parser = Parser(
        "export",
        "Write stored episodes as JSON Lines, Parquet or ATIF.",
        group="",
        usage="FOLDER --out FILE [--format FORMAT] [--tokens] [--overwrite] [--status STATUS ...]",
        epilog=EPILOG,
    )
    parser.add_argument("folder", nargs="?", metavar="FOLDER")
    parser.add_argument("--out", metavar="FILE", help="file to write; - for the standard output")
    parser.add_argument(
        "--format", metavar="FORMAT", help="jsonl, parquet or atif; default: by the suffix of FILE"
    )
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="token ids, log-probs and loss mask as well, where the store has them",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there")
    add_filter_flags(parser)
    flags = parser.parse(argv)
    if flags.folder is None or flags.out is None:
        raise ConfigError(f"{parser.prog}: give a FOLDER and --out FILE")
    wanted, form = filter_of(flags), _format(flags.format, flags.out)
    files = episode_files(flags.folder)
    if any(Path(flags.out).resolve() == file.resolve() for file in files):
        raise ConfigError(f"--out: {flags.out} is what is exported; give another file")
    chosen = (stored for stored in stored_episodes(files) if wanted.keeps(stored))
    count = export_episodes(chosen, flags.out, form, tokens=flags.tokens, overwrite=flags.overwrite)
    episodes = "1 episode" if count == 1 else f"{count} episodes"
    print(f"{episodes} written to {flags.out}", file=sys.stderr if flags.out == STDOUT else sys.stdout)
    return 0


def _format(name: str | None, out: str) -> ExportFormat:
    suffix = Path(out).suffix.removeprefix(".")
    if name is None:
        name = suffix
        if suffix not in ("jsonl", "parquet"):
            raise ConfigError(f"--format: {out} does not say which; give one of {', '.join(FORMATS)}")
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS, "{}")
        raise ConfigError(f"--format: must be one of {', '.join(FORMATS)}, got {name!r}.{hint}")
    if (name == "parquet") != (suffix == "parquet") and suffix in ("jsonl", "parquet"):
        raise ConfigError(f"--format {name}, but --out {out}: give one of the two another name")
    return name
