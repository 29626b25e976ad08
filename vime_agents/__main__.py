"""`python -m vime_agents`."""

import sys

from vime_agents.cli import main

if __name__ == "__main__":
    sys.exit(main())
