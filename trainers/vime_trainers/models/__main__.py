"""`python -m vime_trainers.models smollm2|tiny-qwen3 [--out DIR]`: make a model, print its folder."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from vime_agents.errors import ConfigError
from vime_trainers.models.smollm2 import ensure_smollm2
from vime_trainers.models.tiny import ensure_tiny_qwen3

_MODELS = {"smollm2": ensure_smollm2, "tiny-qwen3": ensure_tiny_qwen3}


def main(argv: list[str] | None = None) -> None:
    """Make the model; copy it to `--out` if asked."""
    parser = argparse.ArgumentParser(prog="python -m vime_trainers.models", description=__doc__)
    parser.add_argument("model", choices=sorted(_MODELS))
    parser.add_argument("--out", type=Path, help="a folder that does not exist yet; default: the cache")
    args = parser.parse_args(argv)
    if args.out is not None and args.out.exists():
        raise ConfigError(f"--out {args.out} exists already: name a folder that does not")
    folder = _MODELS[args.model]()
    if args.out is not None:
        folder = Path(shutil.copytree(folder, args.out))
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
