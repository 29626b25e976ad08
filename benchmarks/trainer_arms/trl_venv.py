"""A virtual environment with TRL, over the packages of this one: same torch, same transformers."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from vime_trainers.models.cache import make_once, models_folder

TRL = "trl==1.16.0"
ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT), *(str(ROOT / name) for name in ("envs", "tools", "sandboxes", "trainers"))]
PACKAGES = sysconfig.get_path("purelib")
"""Of this environment; named by the process that starts an arm, since the cache outlives a checkout."""


def trl_python() -> Path:
    """Its interpreter; made on first use, beside the cached models."""
    folder = models_folder().parent / "venvs" / TRL.replace("==", "-")
    return make_once(folder, _build) / "bin" / "python"


def _build(folder: Path) -> None:
    # The interpreter finds its packages relative to itself, so that the folder can be renamed into place.
    venv.create(folder, with_pip=False, symlinks=True)
    library = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(library), TRL]
    subprocess.run(command, check=True)


def arm_environment() -> dict[str, str]:
    """Environment of an arm's process: the checkout's packages, no hub, as many threads as this process."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([*SOURCES, PACKAGES]), "HF_HUB_OFFLINE": "1"}
