"""`vime-agents train`, which is also `train.py`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from vime_agents import registry
from vime_agents.config.train import TrainConfig
from vime_agents.errors import VimeAgentsError

TRAIN_LOOP = "vime_trainers.ray.train_loop:train"
"""(TrainConfig) -> exit code. A string: the core does not import its trainers."""


def run(argv: Sequence[str]) -> int:
    """Parse the flags and train."""
    config = TrainConfig.from_argv(argv)
    if config.dry_run:
        print(config.to_yaml(), end="")
        return 0
    train: Callable[[TrainConfig], int] = registry.load_object(TRAIN_LOOP, "training loop")
    try:
        return train(config)
    except asyncio.CancelledError:
        # SIGTERM cancels the loop, so that everything is stopped in order: the same end as Ctrl-C.
        raise KeyboardInterrupt from None
    except VimeAgentsError:
        _log_traceback(Path(config.run_dir) / "logs")
        raise


def _log_traceback(logs: Path) -> None:
    """Keep the whole traceback with the run; the terminal shows the message alone."""
    if logs.is_dir():
        with (logs / "errors.log").open("a", encoding="utf-8") as file:
            file.write(traceback.format_exc() + "\n")
