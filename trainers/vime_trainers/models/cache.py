"""Where made models live, and how one appears there: complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def models_folder(cache: Path | None = None) -> Path:
    """`cache`, else `$VIME_AGENTS_CACHE`, else `~/.cache/vime-agents`; its folder of models."""
    root = cache or Path(os.environ.get("VIME_AGENTS_CACHE") or Path.home() / ".cache" / "vime-agents")
    return root.expanduser() / "models"


def make_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build(empty folder)` if it does not exist yet.

    The work happens beside `folder` and is renamed into place, so that a reader sees all of it or
    nothing, and a killed build leaves no half model. Of two builders at once the first to finish wins.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        work.chmod(0o755)
        build(work)
        try:
            work.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder
