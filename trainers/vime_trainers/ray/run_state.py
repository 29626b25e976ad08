"""What a run knows beside its trainer: a file of each checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vime_agents.errors import CheckpointError

FILE = "run_state.json"


class Stateful(Protocol):
    """Its state is JSON."""

    def state_dict(self) -> dict[str, Any]:
        """What to save."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` said."""
        ...


def save_run_state(folder: Path, parts: Mapping[str, Stateful]) -> None:
    """Write the state of each part into a checkpoint that is not complete yet.

    Raises:
        CheckpointError: the file cannot be written.
    """
    state = {name: part.state_dict() for name, part in parts.items()}
    try:
        (folder / FILE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot write {folder / FILE}: {error}") from error


def load_run_state(folder: Path, parts: Mapping[str, Stateful]) -> None:
    """Read it back.

    Raises:
        CheckpointError: the file is missing or broken, or lacks a part.
    """
    path = folder / FILE
    try:
        state = json.loads(path.read_text())
        for name, part in parts.items():
            part.load_state_dict(state[name])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is not the state of a run: {error!r}") from error
