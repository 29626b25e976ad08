"""The table of metrics in docs/training.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "training.md"


def undocumented(names: Iterable[str]) -> set[str]:
    """Those that no row of the table names, `<...>` in it being any word."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("## Metrics of a `train` event")
    table, _, _ = table.partition("\n## ")
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    known = [re.escape(name) for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    pattern = re.compile("|".join(re.sub("<[^>]+>", "[^ ]+", name) for name in known))
    return {name for name in names if not pattern.fullmatch(name)}
