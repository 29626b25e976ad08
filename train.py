"""Train a model on an environment; `python train.py --help` lists the flags."""

import sys

from vime_agents.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
