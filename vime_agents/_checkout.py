"""Running from a checkout that is not installed."""

import sys
from pathlib import Path

_FOLDERS = ("envs", "tools", "sandboxes", "trainers")


def add_root_folders() -> None:
    """Make the built-in plug-ins importable; does nothing in an installed copy."""
    root = Path(__file__).resolve().parent.parent
    for name in _FOLDERS:
        folder = root / name
        if (folder / f"vime_{name}").is_dir() and str(folder) not in sys.path:
            sys.path.append(str(folder))
